//! Programs of real checkpoints use every tensor; missing, misshapen and unused tensors are named.

mod common;

use common::cases;
use kvasir_formats::Checkpoint;
use kvasir_program::{Architecture, Model, Op, ProgramError};

#[test]
fn every_checkpoint_has_its_programs() {
    for case in cases() {
        let checkpoint = Checkpoint::open(&case).unwrap();
        let model = Model::build(&checkpoint.source()).unwrap_or_else(|e| panic!("{}: {e}", case.display()));
        let text = model.target.to_string();
        let is_write =
            |op: &&Op| matches!(op, Op::UpdateAndAttend { k: Some(_), .. } | Op::CompressedAttend { .. });
        let writes = model.target.ops.iter().filter(is_write);
        assert_eq!(writes.count(), model.target.layers.len(), "{text}");
        let json = serde_json::to_string(&model).unwrap();
        assert_eq!(serde_json::from_str::<Model>(&json).unwrap(), model);
        let architecture = Architecture::of(checkpoint.config()).unwrap();
        let config = architecture.spelled_out(checkpoint.config());
        let wants = config.get("num_nextn_predict_layers").and_then(|v| v.as_u64()).unwrap_or(0);
        assert_eq!(model.predictions.len() as u64, wants, "{}", case.display());
    }
}

#[test]
fn missing_misshapen_and_unused_tensors_are_named() {
    for case in cases() {
        let source = Checkpoint::open(&case).unwrap().source();
        let names: Vec<String> = source.tensors.iter().flatten().map(|(name, _)| name.clone()).collect();
        let mut unnoticed = Vec::new();
        // The K and V projections of layers with shared K/V are not read.
        let is_unread = |name: &str| {
            let parts = ["k_proj.weight", "v_proj.weight", "k_norm.weight"];
            case.ends_with("gemma4_ple")
                && ["3", "4", "5"].iter().any(|n| name.contains(&format!("layers.{n}.")))
                && parts.iter().any(|part| name.ends_with(part))
        };
        for name in &names {
            let mut broken = source.clone();
            let tensors = broken.tensors.as_mut().unwrap();
            let shape = tensors.remove(name).unwrap();
            match Model::build(&broken) {
                Err(ProgramError::Missing(missing)) => {
                    assert!(name.starts_with(&missing), "{name}: {missing}")
                }
                Err(ProgramError::Unused { name: half, .. }) => assert!(half.ends_with("_scales"), "{half}"),
                Err(other) => panic!("{}: without {name}: {other}", case.display()),
                Ok(_) => unnoticed.push(name.as_str()),
            }
            let longer = shape.iter().map(|n| n + 1).collect();
            broken.tensors.as_mut().unwrap().insert(name.clone(), longer);
            match Model::build(&broken) {
                Err(ProgramError::Misshapen { name: bad, .. }) => {
                    assert!(name.starts_with(&bad), "{name}: {bad}")
                }
                Err(other) => panic!("{}: bad shape of {name}: {other}", case.display()),
                // Scales have no shape in the program; the reader of the weight checks them against
                // it. Unread tensors may have any shape.
                Ok(_) => assert!(
                    name.contains("_scale") || is_unread(name),
                    "{}: bad shape of {name}",
                    case.display()
                ),
            }
        }
        // May be absent: copies of the embedding and LM head inside MTP layers, and scales.
        unnoticed.retain(|n| {
            !n.contains("_scale")
                && !is_unread(n)
                && !n.ends_with("embed_tokens.weight")
                && !n.ends_with("head.weight")
        });
        assert_eq!(unnoticed, Vec::<&str>::new(), "{}", case.display());
        let mut more = source.clone();
        more.tensors.as_mut().unwrap().insert("model.layers.0.extra.weight".into(), vec![1]);
        let error = Model::build(&more).unwrap_err().to_string();
        assert!(error.contains("model.layers.0.extra.weight"), "{error}");
    }
}
