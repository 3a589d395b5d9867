//! Block-quantized integer weights: formats, superblocks decoded from GGUF and MXFP4, and packing.
//!
//! Knows no kernel; builds on `weights::panels` and `isa`.

pub(crate) mod decode;
pub(crate) mod format;
pub(crate) mod layouts;
pub(crate) mod pack;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pack_q8_0;
pub(crate) mod panels;
pub(crate) mod transpose;
