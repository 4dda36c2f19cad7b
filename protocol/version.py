"""The one place that names the package's version and the protocol's."""

__version__ = "0.2.0"
PROTOCOL_VERSION = 1
