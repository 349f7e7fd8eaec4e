"""How many bytes a text takes, which the two dialects spell differently."""

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement


class ByteLength(FunctionElement[int]):
    """The length of one text in UTF-8 bytes; 0 for NULL."""

    type = BigInteger()
    name = "byte_length"
    inherit_cache = True


@compiles(ByteLength, "sqlite")
def _sqlite(element: ByteLength, compiler: SQLCompiler, **options: Any) -> str:
    return f"COALESCE(LENGTH(CAST({compiler.process(element.clauses, **options)} AS BLOB)), 0)"


@compiles(ByteLength, "postgresql")
def _postgresql(element: ByteLength, compiler: SQLCompiler, **options: Any) -> str:
    return f"COALESCE(OCTET_LENGTH({compiler.process(element.clauses, **options)}), 0)"
