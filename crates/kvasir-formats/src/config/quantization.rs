//! `quantization_config` of a checkpoint: the storage scheme and the modules it excludes.

use crate::error::{Error, Result};
use serde_json::Value as Json;

/// Quantization of a checkpoint's linear weights, from `quantization_config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantization {
    /// The storage scheme.
    pub scheme: Scheme,
    /// Patterns of modules that are not quantized; `*` matches any run of characters.
    pub not_converted: Vec<String>,
}

/// Supported quantization schemes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// FP8 (E4M3) with one f32 scale per block of `rows` × `cols`.
    Fp8Blocks {
        /// Rows per block.
        rows: usize,
        /// Columns per block.
        cols: usize,
    },
    /// MXFP4 experts as `*_blocks` and `*_scales`: 4-bit floats, 32 per scale.
    Mxfp4,
}

impl Quantization {
    /// Parses `quantization_config`. An unsupported scheme is rejected by name.
    pub(crate) fn of(config: &Json) -> Result<Option<Self>> {
        let Some(q) = config.get("quantization_config").filter(|q| !q.is_null()) else { return Ok(None) };
        let fail = |key: &str, why: String| Error::at(format!("quantization_config.{key}"), why);
        let method = q.get("quant_method").and_then(Json::as_str).unwrap_or_default();
        let scheme = match method {
            "fp8" => {
                let format = q.get("fmt").and_then(Json::as_str).unwrap_or("e4m3");
                if format != "e4m3" {
                    return Err(fail("fmt", format!("{format:?} is not supported, only e4m3")));
                }
                // A missing block size means 128 × 128. Null means per-tensor scales, which are not
                // supported.
                let block = q.get("weight_block_size").cloned().unwrap_or_else(|| Json::from(vec![128, 128]));
                let size = |i: usize| {
                    let n = block.get(i)?.as_u64()?;
                    usize::try_from(n).ok().filter(|&n| n > 0 && n <= 1 << 20)
                };
                let (Some(rows), Some(cols)) = (size(0), size(1)) else {
                    return Err(fail("weight_block_size", "is not a pair of block lengths".into()));
                };
                Scheme::Fp8Blocks { rows, cols }
            }
            "mxfp4" => Scheme::Mxfp4,
            other => return Err(fail("quant_method", format!("{other:?} is not supported"))),
        };
        Ok(Some(Self { scheme, not_converted: modules(q)? }))
    }

    /// Whether this module's weights are quantized.
    pub fn applies_to(&self, module: &str) -> bool {
        !self.not_converted.iter().any(|pattern| {
            module == pattern
                || wildcard(pattern.as_bytes(), module.as_bytes())
                || module.strip_prefix(pattern.as_str()).is_some_and(|rest| rest.starts_with('.'))
        })
    }
}

/// Whether `name` matches `pattern`, as a whole or up to a dot.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    pattern == name || wildcard(pattern.as_bytes(), name.as_bytes())
}

fn modules(q: &Json) -> Result<Vec<String>> {
    let Some(list) = q.get("modules_to_not_convert").filter(|l| !l.is_null()) else { return Ok(Vec::new()) };
    let names = list.as_array().and_then(|l| l.iter().map(|v| v.as_str().map(str::to_owned)).collect());
    names.ok_or_else(|| Error::at("quantization_config.modules_to_not_convert", "is not a list of names"))
}

/// Glob match where `*` matches any run of bytes; the match may end at a dot of the name.
fn wildcard(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == name[n] => {
                p += 1;
                n += 1;
            }
            None if name[n] == b'.' => return true,
            _ => match star {
                Some((sp, sn)) => {
                    p = sp + 1;
                    n = sn + 1;
                    star = Some((sp, sn + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_unknown_scheme_is_refused_by_name() {
        let error = Quantization::of(&json!({"quantization_config": {"quant_method": "awq"}})).unwrap_err();
        assert!(error.to_string().contains("\"awq\""), "{error}");
        let bad = json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 128]}});
        assert!(Quantization::of(&bad).unwrap_err().to_string().contains("weight_block_size"));
    }

    #[test]
    fn excluded_modules_may_have_wildcards() {
        let q = Quantization::of(&json!({"quantization_config": {"quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}}));
        let q = q.unwrap().unwrap();
        assert!(!q.applies_to("model.layers.3.self_attn.q_proj"));
        assert!(!q.applies_to("lm_head"));
        assert!(q.applies_to("model.layers.3.mlp.experts"));
    }
}
