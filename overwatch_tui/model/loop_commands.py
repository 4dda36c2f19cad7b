"""Commands that a published run's loop has registered, and values typed for their parameters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_TRUE, _FALSE = ("true", "yes", "y", "1"), ("false", "no", "n", "0")


@dataclass(frozen=True)
class OfferedParameter:
    """A parameter of a command."""

    name: str
    type: str
    """bool, int, float or str."""
    default: Any = None
    has_default: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def hint(self) -> str:
        """Description of the values that can be typed."""
        if self.choices:
            return " or ".join(map(str, self.choices))
        return {"bool": "yes or no", "int": "an integer", "float": "a number"}.get(self.type, "text")

    def parse(self, text: str) -> Any:
        """The value that was typed.

        Raises:
            ValueError: it is not of the type; says what is.
        """
        try:
            value = self._convert(text.strip())
        except ValueError:
            raise ValueError(f"{self.name} = {text!r}: must be {self.hint}") from None
        if self.choices and value not in self.choices:
            raise ValueError(f"{self.name} = {text!r}: must be {self.hint}")
        return value

    def _convert(self, text: str) -> Any:
        if self.type == "bool":
            if text.lower() not in _TRUE + _FALSE:
                raise ValueError(text)
            return text.lower() in _TRUE
        return {"int": int, "float": float}.get(self.type, str)(text)


@dataclass(frozen=True)
class OfferedCommand:
    """A command that can be sent."""

    name: str
    help: str
    parameters: tuple[OfferedParameter, ...] = ()

    @property
    def usage(self) -> str:
        """`value=FLOAT [warm=10]`."""
        return " ".join(
            f"[{one.name}={json.dumps(one.default)}]"
            if one.has_default
            else f"{one.name}={'TEXT' if one.type == 'str' else one.type.upper()}"
            for one in self.parameters
        )

    def params(self, typed: dict[str, str]) -> dict[str, Any]:
        """The parameters to send; those left empty keep their default.

        Raises:
            ValueError: one is missing or of another type; says which.
        """
        params = {}
        for one in self.parameters:
            text = typed.get(one.name, "")
            if text:
                params[one.name] = one.parse(text)
            elif not one.has_default:
                raise ValueError(f"{one.name} is missing: {one.hint}")
        return params


def read_loop_commands(described: dict[str, Any]) -> list[OfferedCommand]:
    """The commands of `status`; what is not as expected is left out."""
    found = []
    for name, of in sorted(described.items()):
        about = of if isinstance(of, dict) else {}
        parameters = about.get("parameters")
        rows = parameters.items() if isinstance(parameters, dict) else ()
        found.append(
            OfferedCommand(
                name,
                str(about.get("help") or ""),
                tuple(_parameter(key, one) for key, one in rows if isinstance(one, dict)),
            )
        )
    return found


def _parameter(name: str, of: dict[str, Any]) -> OfferedParameter:
    choices = of.get("enum")
    return OfferedParameter(
        name=name,
        type=str(of.get("type") or "str"),
        default=of.get("default"),
        has_default="default" in of,
        choices=tuple(choices) if isinstance(choices, list) else (),
    )
