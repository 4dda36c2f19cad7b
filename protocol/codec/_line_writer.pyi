from collections.abc import Callable, Sequence

from esper_overwatch.protocol.messages.events import Context

def write_lines(
    body: bytearray,
    starts: list[int],
    items: Sequence[object],
    begin: int,
    seq: int,
    stream: bytes,
    make_context: Callable[[Context, int | None], bytes],
    most: int,
    room: int,
    /,
) -> int: ...
