//! Block-quantized integer weights.
//!
//! - `format.rs`, `layouts.rs`: storage formats, and static dispatch over them.
//! - `decode.rs`, `pack.rs`, `panels.rs`: GGUF and MXFP4 rows to panels.
//! - `unpack.rs`, `dequantize.rs`: panels to 16-bit integers in registers, and to bf16 tiles.
//!
//! Knows no kernel; builds on `weights::panels` and `isa`.

pub(crate) mod decode;
pub(crate) mod dequantize;
pub(crate) mod format;
pub(crate) mod layouts;
pub(crate) mod pack;
pub(crate) mod panels;
pub(crate) mod unpack;
