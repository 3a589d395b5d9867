//! Chooses the encoding of each converted tensor: base type, `q4_k_m`-style mixes, and per-tensor
//! rules.

use crate::dtype::DType;
use crate::encoding;
use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// Encoding rules of a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    base: DType,
    /// Mixed types (`_m`): some `attn_v` and `ffn_down` tensors get more bits, by layer depth.
    mixed: bool,
    own: Vec<Own>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Own {
    pattern: String,
    dtype: DType,
    /// The rule as given, for errors.
    rule: String,
}

/// Properties of a tensor that the rules depend on.
pub(super) struct Subject<'a> {
    pub(super) name: &'a str,
    pub(super) shape: &'a [usize],
    pub(super) layers: usize,
    /// Whether this matrix produces the logits: the LM head, or the embedding if tied.
    pub(super) is_head: bool,
}

impl Rules {
    /// Parses the base type and per-tensor rules.
    ///
    /// `dtype` is a type name, or `q4_k_m` or `q5_k_m` for the usual mixes. `own` holds rules
    /// `PATTERN=TYPE` over GGUF names, with `*` as wildcard; the first match applies. Vectors,
    /// biases and routers always stay f32.
    pub fn parse(dtype: &str, own: &[String]) -> Result<Self> {
        let (base, mixed) = match dtype.to_ascii_lowercase().as_str() {
            "q4_k_m" => (DType::Q4K, true),
            "q5_k_m" => (DType::Q5K, true),
            other => (weight_type("--dtype", other)?, false),
        };
        let own = own.iter().map(|rule| {
            let split = rule.rsplit_once('=').filter(|(pattern, _)| !pattern.is_empty());
            let (pattern, dtype) =
                split.ok_or_else(|| Error::at("--rule", format!("{rule:?} is not PATTERN=TYPE")))?;
            let dtype = weight_type("--rule", dtype)?;
            Ok(Own { pattern: pattern.to_owned(), dtype, rule: rule.clone() })
        });
        Ok(Self { base, mixed, own: own.collect::<Result<_>>()? })
    }

    /// The `general.file_type` code of the overall encoding.
    pub(super) fn file_type(&self) -> u32 {
        match (self.base, self.mixed) {
            (DType::F32, _) => 0,
            (DType::F16, _) => 1,
            (DType::Q4_0, _) => 2,
            (DType::Q4_1, _) => 3,
            (DType::Q8_0, _) => 7,
            (DType::Q5_0, _) => 8,
            (DType::Q5_1, _) => 9,
            (DType::Q2K, _) => 10,
            (DType::Q3K, _) => 11,
            (DType::Q4K, false) => 14,
            (DType::Q4K, true) => 15,
            (DType::Q5K, false) => 16,
            (DType::Q5K, true) => 17,
            (DType::Q6K, _) => 18,
            (DType::Mxfp4, _) => 38,
            (DType::BF16, _) => 32,
            (DType::Iq4Nl, _) => 25,
            (DType::Iq4Xs, _) => 30,
            (
                DType::F64
                | DType::F8E4M3
                | DType::F8E8M0
                | DType::U8
                | DType::I8
                | DType::I16
                | DType::I32
                | DType::I64
                | DType::Bool,
                _,
            ) => unreachable!("{} is not a type of weights", self.base),
        }
    }

    /// Index of the first own rule that matches a tensor.
    fn own_of(&self, s: &Subject<'_>) -> Option<usize> {
        s.stem()?;
        self.own.iter().position(|own| crate::config::quantization::matches(&own.pattern, s.name))
    }

    /// Fails if an own rule matches no tensor.
    pub(super) fn check_used<'a>(&self, all: impl Iterator<Item = Subject<'a>>) -> Result<()> {
        let used: BTreeSet<usize> = all.filter_map(|s| self.own_of(&s)).collect();
        let unused = self.own.iter().enumerate().filter(|(i, _)| !used.contains(i));
        let unused: Vec<&str> = unused.map(|(_, own)| own.rule.as_str()).collect();
        if unused.is_empty() {
            Ok(())
        } else {
            Err(Error::at(
                "--rule",
                format!(
                    "{} matches no tensor: no convertible tensor has such a name, or earlier rules match them all",
                    unused.join(", ")
                ),
            ))
        }
    }

    /// The encoding of a tensor. Fails if an own rule's blocks do not divide the row.
    pub(super) fn dtype(&self, s: &Subject<'_>) -> Result<DType> {
        // Expert ids by token id (DeepSeek-V4) are integers.
        if s.name.ends_with("ffn_gate_tid2eid.weight") {
            return Ok(DType::I32);
        }
        let Some(stem) = s.stem() else { return Ok(DType::F32) };
        if let Some(own) = self.own_of(s) {
            let dtype = self.own[own].dtype;
            let row = s.shape.last().copied().unwrap_or(1);
            dtype.row_bytes(row).map_err(|e| Error::at(format!("--rule for {}", s.name), e))?;
            return Ok(dtype);
        }
        let mut dtype = self.base;
        if self.mixed
            && (stem.ends_with("attn_v") || stem.ends_with("ffn_down") || stem.ends_with("ffn_down_exps"))
        {
            let layer =
                stem.strip_prefix("blk.").and_then(|r| r.split('.').next()).and_then(|n| n.parse().ok());
            if layer.is_some_and(|l| more_bits(l, s.layers)) {
                dtype = DType::Q6K;
            }
        }
        if s.is_head && dtype.is_quantized() && dtype != DType::Q8_0 {
            dtype = DType::Q6K;
        }
        Ok(fitting(dtype, s.shape.last().copied().unwrap_or(1)))
    }
}

impl<'a> Subject<'a> {
    /// The name without `.weight`, or `None` if the tensor must stay f32.
    ///
    /// Vectors, norms, routers, biases, convolutions, and weights of hyper-connections and of key
    /// pools are never quantized, whatever rule matches: other engines read them as f32 only.
    fn stem(&self) -> Option<&'a str> {
        let stem = self.name.strip_suffix(".weight").filter(|stem| !stem.is_empty())?;
        const UNQUANTIZED: [&str; 22] = [
            "ffn_gate_inp",
            "ffn_gate_inp_shexp",
            "_norm",
            "ssm_conv1d",
            "ssm_conv1d_q",
            "ssm_conv1d_k",
            "ssm_conv1d_v",
            "shortconv.conv",
            "hc_attn_fn",
            "hc_ffn_fn",
            "hc_attn_down",
            "hc_attn_up",
            "hc_attn_inject",
            "hc_ffn_down",
            "hc_ffn_up",
            "hc_ffn_inject",
            "ple_conv1d",
            "indexer_compressor_gate",
            "indexer_compressor_ape",
            "attn_compressor_gate",
            "attn_compressor_ape",
            "output_hc_fn",
        ];
        let fixed = self.shape.len() < 2 || UNQUANTIZED.iter().any(|end| stem.ends_with(end));
        (!fixed).then_some(stem)
    }
}

fn weight_type(place: &str, name: &str) -> Result<DType> {
    let written = |d: &DType| d.is_weight() && encoding::is_written(*d);
    let dtype = DType::from_name(name).filter(written);
    dtype.ok_or_else(|| {
        let types: Vec<&str> = DType::all().filter(written).map(DType::name).collect();
        let mixes = if place == "--dtype" { ", q4_k_m, q5_k_m" } else { "" };
        let why =
            format!("`{name}` is not a type that weights can be converted to: {}{mixes}", types.join(", "));
        Error::at(place, why)
    })
}

/// Layers that get more bits: the first and last eighth, and every third between (as in llama.cpp).
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// Fallback to the nearest type whose block length divides the row.
fn fitting(dtype: DType, row: usize) -> DType {
    if row.is_multiple_of(dtype.block_len()) {
        return dtype;
    }
    let smaller = match dtype {
        DType::Q2K | DType::Q3K => DType::Q4_0,
        DType::Q4K => DType::Q5_0,
        DType::Q5K => DType::Q5_1,
        DType::Q6K => DType::Q8_0,
        other => other,
    };
    if row.is_multiple_of(smaller.block_len()) { smaller } else { DType::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_depend_on_name_shape_and_depth() {
        let rules = Rules::parse("Q4_K_M", &["blk.1.*=q8_0".into(), "*_exps*=mxfp4".into()]).unwrap();
        let dtype = |name: &str, shape: &[usize], is_head| {
            rules.dtype(&Subject { name, shape, layers: 16, is_head }).unwrap()
        };
        assert_eq!(dtype("blk.0.attn_v.weight", &[512, 512], false), DType::Q6K);
        assert_eq!(dtype("blk.3.attn_v.weight", &[512, 512], false), DType::Q4K);
        assert_eq!(dtype("blk.4.attn_v.weight", &[512, 512], false), DType::Q6K);
        assert_eq!(dtype("blk.1.attn_v.weight", &[512, 512], false), DType::Q8_0);
        assert_eq!(dtype("blk.3.attn_q.weight", &[512, 96], false), DType::Q5_0);
        assert_eq!(dtype("blk.3.attn_q.weight", &[512, 40], false), DType::F16);
        assert_eq!(dtype("blk.3.attn_norm.weight", &[512], false), DType::F32);
        assert_eq!(dtype("blk.3.ffn_gate_inp.weight", &[8, 512], false), DType::F32);
        assert_eq!(dtype("blk.1.attn_norm.weight", &[512], false), DType::F32);
        assert_eq!(dtype("blk.1.ssm_conv1d_q.weight", &[512, 1, 4], false), DType::F32);
        assert_eq!(dtype("blk.1.hc_ffn_fn.weight", &[24, 512], false), DType::F32);
        assert_eq!(dtype("blk.3.ffn_up_exps.weight", &[8, 512, 512], false), DType::Mxfp4);
        assert_eq!(dtype("blk.3.ffn_up_exps.bias", &[8, 512], false), DType::F32);
        assert_eq!(dtype("output.weight", &[1000, 512], true), DType::Q6K);
        let subject = |name| Subject { name, shape: &[512, 512], layers: 16, is_head: false };
        let used = |names: &[&'static str]| rules.check_used(names.iter().map(|name| subject(name)));
        assert_eq!(used(&["blk.1.attn_v.weight", "blk.0.ffn_up_exps.weight"]), Ok(()));
        let unused = used(&["blk.1.ffn_up_exps.weight", "blk.0.attn_v.weight"]).unwrap_err().to_string();
        assert!(unused.starts_with("--rule: *_exps*=mxfp4 matches no tensor"), "{unused}");
        let unused = used(&["blk.1.ffn_gate_inp.weight"]).unwrap_err().to_string();
        assert!(unused.contains("blk.1.*=q8_0, *_exps*=mxfp4"), "{unused}");
        assert!(Rules::parse("i32", &[]).is_err());
        assert!(Rules::parse("f16", &["=q8_0".into()]).is_err());
    }
}
