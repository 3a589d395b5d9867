//! Embeddings of hashed n-grams (PLE), added to the residual streams X before one layer. For each
//! stream k:
//!
//! ```text
//! e   = table rows of the n-grams that end at the token      v = value · e
//! a_k = rms(key · e)_k · rms(X)_k / sqrt(hidden)
//! u_k = sigmoid(sign(a_k) sqrt(|a_k|)) v
//! X   = X + u + silu(conv(rms(u)))
//! ```

use crate::blocks::decoder::Norms;
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::builder::recurrent::Convolution;
use crate::error::Result;
use crate::ir::elementwise::Elementwise;
use crate::ir::ngram::NgramForm;
use crate::ir::value::ValueId;
use crate::ir::weight::{Role, WeightId};

/// The n-gram embeddings of a model.
pub(crate) struct NgramEmbedding {
    /// The layer before which they are added, from 0.
    pub(crate) layer: usize,
    /// `tables` is empty until `build`.
    form: NgramForm,
    /// Total elements of the rows of all heads.
    width: usize,
    /// Number of tensors that the table is divided into, in a Hugging Face checkpoint.
    parts: usize,
    kernel: usize,
    streams: usize,
    norms: Norms,
}

/// Upper bounds of the n-gram order and of the number of heads, above any published model's.
const MAX_ORDER: usize = 16;
const MAX_HEADS: usize = 256;
/// Name of the table in files that have it as one tensor.
const WHOLE_TABLE: &str = "model.ngram_embedding.weight";

impl NgramEmbedding {
    /// Reads the config; `None` if no layer has n-gram embeddings.
    pub(crate) fn read(
        c: Config<'_>,
        norms: Norms,
        streams: usize,
        is_recurrent: &[bool],
    ) -> Result<Option<Self>> {
        let ids = c.counts("ple_layer_ids")?;
        let layer = match ids[..] {
            [] => return Ok(None),
            [number] if number > 0 => number - 1,
            _ => return Err(c.bad("ple_layer_ids", "is not one layer, counted from 1")),
        };
        if is_recurrent.get(layer) != Some(&true) {
            return Err(c.bad("ple_layer_ids", format!("has {}, which is no recurrent layer", layer + 1)));
        }
        let (size, heads) = (c.size("ngram_size")?, c.size("heads_per_ngram")?);
        if !(2..=MAX_ORDER).contains(&size) || (size - 1).saturating_mul(heads) > MAX_HEADS {
            let why = format!("is {size} with {heads} heads, which is not supported");
            return Err(c.bad("ngram_size", why));
        }
        let head_count = (size - 1) * heads;
        let rows = one_per_head(c, "ple_head_vocab_sizes", head_count)?;
        let offsets = one_per_head(c, "ple_head_offsets", head_count)?;
        if rows.contains(&0) {
            return Err(c.bad("ple_head_vocab_sizes", "has a 0"));
        }
        let multipliers = c.integers("ple_layer_multipliers")?;
        if multipliers.len() != size {
            let why = format!("has {} numbers, not {size}", multipliers.len());
            return Err(c.bad("ple_layer_multipliers", why));
        }
        let end = c.count("ple_eos_token_id")? as u32;
        let form = NgramForm { tables: Vec::new(), size, heads, multipliers, rows, offsets, end };
        let width = c.size_or("ple_embed_dim", c.size("hidden_size")?)?;
        if !width.is_multiple_of(head_count) {
            let why = format!("is {width}, not a multiple of {head_count} heads");
            return Err(c.bad("ple_embed_dim", why));
        }
        let (parts, kernel) = (c.number("split_ngram_parts")?, c.size("ple_conv_kernel_size")?);
        Ok(Some(Self { layer, form, width, parts, kernel, streams, norms }))
    }

    /// Adds the embeddings to the streams; tensor names start with `p`.
    pub(crate) fn build(&self, b: &mut Builder<'_>, p: &str, streams: ValueId) -> Result<ValueId> {
        let (hidden, all) = (b.program.hidden, b.width(streams));
        let tables = self.tables(b, p)?;
        let row = self.width / self.form.rows.len();
        let e = b.ngram_embed(NgramForm { tables, ..self.form.clone() }, row);
        let value = b.matrix(&format!("{p}value_proj"), hidden, self.width, false, Role::Matrix)?;
        let value = b.linear(e, value)?;
        let key = b.matrix(&format!("{p}key_proj"), all, self.width, false, Role::Matrix)?;
        let key = b.linear(e, key)?;
        let key = self.stream_norm(b, key, &format!("{p}norm_key"))?;
        let query = self.stream_norm(b, streams, &format!("{p}norm_query"))?;
        let scores = b.group_dot(key, query, self.streams)?;
        let scores = b.scale(scores, (hidden as f64).powf(-0.5));
        let scores = b.elementwise(scores, Elementwise::SignedSqrt);
        let weights = b.elementwise(scores, Elementwise::Sigmoid);
        let u = b.mix_streams(value, weights, 1)?;
        let normed = self.stream_norm(b, u, &format!("{p}norm_conv"))?;
        let conv = b.convolution(&format!("{p}conv1d"), all, self.kernel, false)?;
        let conv = Convolution { dilation: self.form.size, silu: true, ..conv };
        let mixed = b.short_conv(normed, conv);
        let added = b.add(u, mixed)?;
        b.add(streams, added)
    }

    fn stream_norm(&self, b: &mut Builder<'_>, x: ValueId, name: &str) -> Result<ValueId> {
        b.stream_norm(x, self.norms.kind, self.norms.eps, name, self.streams)
    }

    /// The parts of the table, in order. Fails if they have fewer rows than the heads read.
    fn tables(&self, b: &mut Builder<'_>, p: &str) -> Result<Vec<WeightId>> {
        let needed = self.form.rows.iter().zip(&self.form.offsets);
        let needed = needed.map(|(rows, offset)| *rows as usize + *offset as usize).max().unwrap_or(0);
        let width = self.width / self.form.rows.len();
        let names: Vec<String> = if b.source.has(WHOLE_TABLE) {
            vec![WHOLE_TABLE.to_owned()]
        } else {
            let name = |part| format!("{p}ple_embedding.ngram_embedding.shard_{part}.weight");
            (0..self.parts).map(name).collect()
        };
        // All parts but the last have equally many rows.
        let even_rows = needed.div_ceil(names.len());
        let stored_rows = |name: &str| b.source.shape(name).and_then(|shape| shape.first().copied());
        let first = stored_rows(&names[0]).unwrap_or(even_rows);
        let last = names.last().and_then(|name| stored_rows(name)).unwrap_or(first).min(first);
        if first.saturating_mul(names.len() - 1).saturating_add(last) < needed {
            let why = format!("needs {needed} rows, the table has fewer");
            return Err(b.config.bad("ple_head_offsets", why));
        }
        let count = names.len();
        let rows = |part: usize| if part + 1 == count { last } else { first };
        let tables = names.iter().enumerate();
        tables.map(|(part, name)| b.weight(name, &[rows(part), width], Role::Embedding)).collect()
    }
}

/// A config list with one number of rows per head.
fn one_per_head(c: Config<'_>, key: &str, heads: usize) -> Result<Vec<u32>> {
    let all = c.integers(key)?;
    let numbers: Option<Vec<u32>> = all.iter().map(|n| u32::try_from(*n).ok()).collect();
    match numbers.filter(|all| all.len() == heads) {
        Some(all) => Ok(all),
        None => Err(c.bad(key, format!("is not a list of {heads} numbers of rows"))),
    }
}
