//! Values as Python has them, and how they print: `str`, `repr`, `tojson`, `strftime`.

pub(crate) mod json;
pub(crate) mod repr;
pub(crate) mod sorting;
pub(crate) mod time;
pub(crate) mod value;
