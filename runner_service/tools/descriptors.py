"""How a gRPC tool's method is called: from the descriptor set of its config, or by asking its server (SPEC 7.10)."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from turnkeeper.wire.configs import GrpcMethod

from runner_service.tools.reflection import MethodUnknown, describe

CAPACITY = 64
# A server may be replaced by one with other messages; what it said of itself is asked again after this.
KEPT_SECONDS = 300.0


class Descriptors:
    """What is known of methods; one for the process, bounded, and forgotten after a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pools: OrderedDict[tuple[str, str], tuple[float, DescriptorPool]] = OrderedDict()

    async def find(self, channel: grpc.aio.Channel, method: GrpcMethod, headers: Mapping[str, str]) -> MethodDescriptor:
        """The unary method; MethodUnknown for any other. The headers go to the server's reflection."""
        service, _, name = method.method.partition("/")
        given = method.descriptor_set
        key = (method.target, service) if given is None else ("", hashlib.sha256(given).hexdigest())
        pool = self._known(key)
        if pool is None:
            files = (
                await describe(channel, service, headers) if given is None else FileDescriptorSet.FromString(given).file
            )
            pool = _pool_of(files)
            self._pools[key] = (self._clock() + KEPT_SECONDS, pool)
            while len(self._pools) > CAPACITY:
                self._pools.popitem(last=False)
        return _unary(pool, service, name)

    def _known(self, key: tuple[str, str]) -> DescriptorPool | None:
        if key not in self._pools:
            return None
        until, pool = self._pools[key]
        if self._clock() >= until:
            del self._pools[key]
            return None
        self._pools.move_to_end(key)
        return pool


def _unary(pool: DescriptorPool, service: str, name: str) -> MethodDescriptor:
    try:
        method = pool.FindServiceByName(service).methods_by_name.get(name)
    except KeyError:
        method = None
    if method is None:
        raise MethodUnknown(f"there is no method {service}/{name}")
    if method.client_streaming or method.server_streaming:
        raise MethodUnknown(f"{service}/{name} is a streaming method, and only unary ones can be tools")
    return method


def _pool_of(files: Iterable[FileDescriptorProto]) -> DescriptorPool:
    """A pool of its own: two servers may have different messages of one name."""
    by_name = {file.name: file for file in files}
    pool = DescriptorPool()
    try:
        for name in TopologicalSorter({file.name: file.dependency for file in by_name.values()}).static_order():
            pool.AddSerializedFile(by_name[name].SerializeToString())
    except KeyError as error:
        raise MethodUnknown(f"the descriptor set lacks the file {error}") from None
    except (CycleError, TypeError):
        raise MethodUnknown("the description of the method is malformed") from None
    return pool
