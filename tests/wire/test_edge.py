"""One edge validator for every field of every request (SPEC 11.1; CASES 20, 23)."""

import uuid
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from turnkeeper.v1 import (
    run_service_pb2,
)
from turnkeeper.wire import edge
from turnkeeper.wire.edge_fields import FIELDS, MAX_ITEMS, REQUIRED

from tests.wire.requests import ID, REQUESTS, check_field, new, wrong


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("message", REQUESTS.values(), ids=REQUESTS.keys())
def test_every_field_of_every_request_has_a_rule(message: Descriptor) -> None:
    edge.checks(message)  # raises LookupError for a field without one


@pytest.mark.spec("11.1")
def test_the_tables_name_nothing_that_does_not_exist() -> None:
    fields = {f"{message.name}.{field.name}" for message in REQUESTS.values() for field in message.fields}
    fields |= {name.split(".")[1] for name in fields} | {"labels.key", "labels.value"}
    assert set(FIELDS) | set(MAX_ITEMS) <= fields
    for name, required in REQUIRED.items():
        message = REQUESTS[name]
        assert required <= {field.name for field in message.fields} | {oneof.name for oneof in message.oneofs}


SPELLINGS = [ID, ID.upper(), "{" + ID + "}", "urn:uuid:" + ID, "URN:UUID:" + ID.upper(), ID.replace("-", "")]


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_usual_spelling_of_an_id_is_one_id(spelling: str) -> None:
    request = run_service_pb2.GetRunRequest(run_id=spelling)
    edge.validate(request)
    assert request.run_id == ID


BAD_IDS = [
    f"{ID}\n",
    f" {ID}",
    f"{ID}\x00",
    "{" + ID,
    ID + "}",
    "{" + ID.replace("-", "") + "}",
    "urn:uuid:" + ID.replace("-", ""),
    "urn:" + ID,
    "urn:uuid:{" + ID + "}",
    ID[:-1],
    ID + "a",
    ID.replace("-", "_"),
    ID.replace("0199", "0199-"),
    ID[:-1] + "g",
    ID[:-1] + "٣",
    "x",
    str(uuid.UUID(int=0)),
    "{" + str(uuid.UUID(int=0)) + "}",
    "0" * 32,
    "a" * 100_000,
]


def _id_fields() -> Iterator[tuple[Descriptor, FieldDescriptor]]:
    for message in REQUESTS.values():
        for field in message.fields:
            by_message = FIELDS.get(f"{message.name}.{field.name}", FIELDS.get(field.name))
            if by_message is FIELDS["session_id"]:
                yield message, field


ID_FIELDS = {f"{message.name}.{field.name}": (message, field) for message, field in _id_fields()}


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("where", ID_FIELDS)
def test_ids_are_the_same_in_every_request(where: str) -> None:
    descriptor, field = ID_FIELDS[where]
    for spelling in SPELLINGS:
        message = new(descriptor)
        setattr(message, field.name, spelling)
        check_field(message, field)
        assert getattr(message, field.name) == ID
    for bad in BAD_IDS:
        message = new(descriptor)
        setattr(message, field.name, bad)
        assert check_field(message, field) == [field.name], bad


def _text_fields() -> Iterator[tuple[Descriptor, FieldDescriptor]]:
    for message in REQUESTS.values():
        for field in message.fields:
            if field.type == FieldDescriptor.TYPE_STRING:
                yield message, field


TEXT_FIELDS = {f"{message.name}.{field.name}": (message, field) for message, field in _text_fields()}


@pytest.mark.spec("11.1")
@pytest.mark.parametrize("where", TEXT_FIELDS)
def test_no_text_of_any_request_takes_nul_or_has_no_limit(where: str) -> None:
    descriptor, field = TEXT_FIELDS[where]
    for bad in ("a\x00b", "x" * (2 * 1024 * 1024)):
        message = new(descriptor)
        if field.is_repeated:
            getattr(message, field.name).append(bad)
            expected = f"{field.name}[0]"
        else:
            setattr(message, field.name, bad)
            expected = field.name
        assert expected in wrong(message)
