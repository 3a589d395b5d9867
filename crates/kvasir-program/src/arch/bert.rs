//! BERT and RoBERTa (XLM-RoBERTa, CamemBERT): post-norm encoders with learned position embeddings
//! and token types. RoBERTa numbers positions from the padding token's id plus one.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::blocks::classifier::Classifier;
use crate::blocks::encoder::{EncoderHeads, activation_function, limit_max_positions, pooling};
use crate::builder::Builder;
use crate::builder::position_table::skipped_rows;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::encoder::{BIDIRECTIONAL, EMBEDDING_TABLES, POOLING};
use crate::gguf::tensor_name::TensorName::{Outside, Stem};
use crate::gguf::transform::{StoredAs, Transform};
use crate::ir::elementwise::Elementwise;
use crate::ir::layer::LayerId;
use crate::ir::lookup::LookupIndex;
use crate::ir::pooling::Pooling;
use crate::ir::program::Tap;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

pub(crate) static BERT: Architecture = Architecture {
    classes: &[
        Class::text("BertModel", "bert"),
        Class::text("BertForSequenceClassification", "bert"),
        Class::text("XLMRobertaModel", "xlm-roberta"),
        Class::text("XLMRobertaForSequenceClassification", "xlm-roberta"),
        Class::text("RobertaModel", "roberta"),
        Class::text("RobertaForSequenceClassification", "roberta"),
        Class::text("CamembertModel", "camembert"),
        Class::text("CamembertForSequenceClassification", "camembert"),
    ],
    renames: &[],
    config_tensors: &[],
    is_encoder: true,
    gguf: Gguf {
        names: &["bert"],
        written: |_| "bert",
        claims: |_| true,
        tensors: &[&[
            Outside("token_embd.weight", "model.embeddings.word_embeddings.weight"),
            Outside("position_embd.weight", POSITIONS),
            Outside("token_types.weight", "model.embeddings.token_type_embeddings.weight"),
            Outside("token_embd_norm.weight", "model.embeddings.LayerNorm.weight"),
            Outside("token_embd_norm.bias", "model.embeddings.LayerNorm.bias"),
            Stem("attn_q", "attention.self.query"),
            Stem("attn_k", "attention.self.key"),
            Stem("attn_v", "attention.self.value"),
            Stem("attn_output", "attention.output.dense"),
            Stem("attn_output_norm", "attention.output.LayerNorm"),
            Stem("ffn_up", "intermediate.dense"),
            Stem("ffn_down", "output.dense"),
            Stem("layer_output_norm", "output.LayerNorm"),
            Outside("cls.weight", "classifier.dense.weight"),
            Outside("cls.bias", "classifier.dense.bias"),
            Outside("cls.output.weight", "classifier.out_proj.weight"),
            Outside("cls.output.bias", "classifier.out_proj.bias"),
        ]],
        transforms: &[&[StoredAs {
            tensors: "position_embeddings.weight",
            transform: Transform::SkipPaddingRows,
        }]],
        rules: &[POOLING, BIDIRECTIONAL, EMBEDDING_TABLES],
    },
    models: "all-MiniLM, BGE, E5, Granite Embedding; rerankers based on them",
    specifics: "encoder: learned positions, token types, post-norm",
    defaults: |config| {
        fill(config, [("type_vocab_size", 2.into()), ("layer_norm_eps", 1e-12.into())]);
    },
    target,
    prediction: None,
};

const POSITIONS: &str = "model.embeddings.position_embeddings.weight";

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    c.require_text("position_embedding_type", "absolute")?;
    let eps = c.amount_or("layer_norm_eps", 1e-12)?;
    let x = embeddings(b, eps)?;
    let layer = BertLayer {
        heads: EncoderHeads::read(c)?,
        intermediate: c.size("intermediate_size")?,
        function: activation_function(c, "hidden_act")?,
        eps,
    };
    let kv = layer.heads.kv_layer(b, None);
    let mut x = x;
    for i in 0..c.number("num_hidden_layers")? {
        b.tap(Tap::IntoLayer(i as u32), x);
        x = layer.build(b, &format!("model.layers.{i}."), kv, x)?;
    }
    b.tap(Tap::OutOfLastLayer, x);
    b.tap(Tap::FinalNorm, x);
    if Classifier::is_present(b)? {
        let pooled = b.pool(x, Pooling::Cls);
        let head = Classifier { function: Elementwise::Tanh, dense_bias: true, norm_eps: None };
        head.build(b, pooled)?;
    } else {
        let pooling = pooling(c)?;
        b.pool(x, pooling);
    }
    Ok(())
}

/// LN(word + position + token type).
fn embeddings(b: &mut Builder<'_>, eps: f64) -> Result<ValueId> {
    let c = b.config;
    let (table, mut skipped) = (b.program.max_positions, skipped_rows(c)?);
    let positions = table.saturating_sub(skipped);
    if positions == 0 {
        return Err(c.bad(
            "max_position_embeddings",
            format!("is {table}: no row is left after the padding token's"),
        ));
    }
    // GGUF files do not store the skipped rows.
    let stored = b.source.shape(POSITIONS).and_then(|shape| shape.first().copied());
    if stored == Some(positions) {
        skipped = 0;
    }
    limit_max_positions(b, positions)?;
    let word = b.embed_from("model.embeddings.word_embeddings.weight", 1.0)?;
    let index = LookupIndex::Position { offset: skipped as u32 };
    let position = b.lookup("model.embeddings.position_embeddings", positions + skipped, index)?;
    let types = c.size("type_vocab_size")?;
    let token_type = b.lookup("model.embeddings.token_type_embeddings", types, LookupIndex::TokenType)?;
    let x = b.add(word, position)?;
    let x = b.add(x, token_type)?;
    b.layer_norm(x, "model.embeddings.LayerNorm", true, eps)
}

/// Sizes and functions that all layers share.
struct BertLayer {
    heads: EncoderHeads,
    intermediate: usize,
    function: Elementwise,
    eps: f64,
}

impl BertLayer {
    /// x = LN(x + attention(x)); x = LN(x + down(act(up(x)))).
    fn build(&self, b: &mut Builder<'_>, p: &str, kv: LayerId, x: ValueId) -> Result<ValueId> {
        let hidden = b.program.hidden;
        let mut project = |name: &str| {
            let matrix =
                b.matrix(&format!("{p}attention.self.{name}"), hidden, hidden, true, Role::Matrix)?;
            b.linear(x, matrix)
        };
        let qkv = [project("query")?, project("key")?, project("value")?];
        let y = self.heads.attend(b, kv, qkv)?;
        let matrix = b.matrix(&format!("{p}attention.output.dense"), hidden, hidden, true, Role::Matrix)?;
        let y = b.linear(y, matrix)?;
        let x = b.add(x, y)?;
        let x = b.layer_norm(x, &format!("{p}attention.output.LayerNorm"), true, self.eps)?;
        let matrix =
            b.matrix(&format!("{p}intermediate.dense"), self.intermediate, hidden, true, Role::Matrix)?;
        let y = b.linear(x, matrix)?;
        let y = b.elementwise(y, self.function);
        let matrix = b.matrix(&format!("{p}output.dense"), hidden, self.intermediate, true, Role::Matrix)?;
        let y = b.linear(y, matrix)?;
        let x = b.add(x, y)?;
        b.layer_norm(x, &format!("{p}output.LayerNorm"), true, self.eps)
    }
}
