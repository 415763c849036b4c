"""The attributes by which NetCDF's conventions pack numbers, and say which of them are none."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stream_server.errors import ConfigError

# What NetCDF fills variables with that nobody wrote, by type; bytes have none.
DEFAULT_FILLS = {
    "i2": -(2**15) + 1,
    "i4": -(2**31) + 1,
    "i8": -(2**63) + 2,
    "u2": 2**16 - 1,
    "u4": 2**32 - 1,
    "u8": 2**64 - 2,
    "f4": np.float32(9.969209968386869e36),
    "f8": 9.969209968386869e36,
}


def whole(variable: Any) -> Any:
    """All values of a variable of HDF5 or NetCDF."""
    return _unpacked(variable, variable[...])


def row(variable: Any, index: int) -> Any:
    """The values of one step of such a variable."""
    return _unpacked(variable, variable[index])


def _unpacked(variable: Any, values: Any) -> Any:
    """The numbers that are meant by NetCDF's conventions; those that stand for none are masked."""
    attributes = getattr(variable, "attrs", None)
    attributes = getattr(variable, "_attributes", {}) if attributes is None else attributes
    values = np.asarray(values)
    if values.dtype.kind not in "iuf":
        return values
    if attributes.get("_Unsigned") in ("true", b"true"):
        raise ConfigError(
            f"{getattr(variable, 'name', 'a variable')} has the attribute _Unsigned, by which its numbers are not what "
            "they look like: have the solver write unsigned numbers (NetCDF 4), or larger ones"
        )
    missing = _missing(variable, attributes, values)
    if np.any(missing):
        values = np.ma.masked_where(missing, values)
    scale, offset = (attributes.get(name) for name in ("scale_factor", "add_offset"))
    if scale is not None:
        values = values * np.asarray(scale).item()
    return values if offset is None else values + np.asarray(offset).item()


def _missing(variable: Any, attributes: Mapping[str, Any], values: Any) -> Any:
    """Which of the numbers stand for none, as they are in the file: False, or an array."""
    missing: Any = False
    default = DEFAULT_FILLS.get(values.dtype.str[1:])
    # A file of HDF5 that is none of NetCDF has another.
    is_default = default is not None and values.dtype.type(getattr(variable, "fillvalue", default)) == default
    fills = [attributes.get("_FillValue", default if is_default else None), attributes.get("missing_value")]
    for fill in (each for given in fills if given is not None for each in np.ravel(given)):
        missing |= np.isnan(values) if fill != fill else values == fill
    low, high = attributes.get("valid_range", (attributes.get("valid_min"), attributes.get("valid_max")))
    if low is not None:
        missing |= values < low
    if high is not None:
        missing |= values > high
    return missing
