//! Property test: configs with nonsense values give an error or a valid program, never a panic, and
//! quickly.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_program::{Model, Source};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn configs() -> Vec<Json> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models");
    let mut paths: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let texts = paths.iter().map(|path| std::fs::read_to_string(path.join("config.json")).unwrap());
    // Readers of files take a bare infinity for null, too.
    texts.map(|text| serde_json::from_str(&text.replace("Infinity", "null")).unwrap()).collect()
}

fn nonsense() -> impl Strategy<Value = Json> {
    let number =
        prop_oneof![Just(0i64), Just(1), Just(2), Just(3), Just(7), Just(-1), Just(65_537), Just(i64::MAX)];
    prop_oneof![
        Just(Json::Null),
        Just(json!("nonsense")),
        Just(json!([])),
        Just(json!({})),
        Just(json!([1, "x", null])),
        Just(json!(1e308)),
        Just(json!(-0.0)),
        Just(json!(true)),
        number.prop_map(|n| json!(n)),
    ]
}

#[test]
fn numbers_that_make_no_numbers_are_refused_by_name() {
    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/models");
    let with = |model: &str, key: &str, value: Json| {
        let text = std::fs::read_to_string(format!("{models}/{model}/config.json")).unwrap();
        let mut config: Json = serde_json::from_str(&text).unwrap();
        config[key] = value;
        Model::build(&Source::of_config(config)).map(|_| ()).map_err(|e| e.to_string())
    };
    for (model, key) in [
        ("gemma3", "query_pre_attn_scalar"),
        ("gemma3", "final_logit_softcapping"),
        ("gpt_oss", "swiglu_limit"),
    ] {
        for bad in [json!(0), json!(-30.0), json!(1e-60), json!(1e60)] {
            let error = with(model, key, bad).unwrap_err();
            assert!(error.contains(key) && error.contains("not a positive number"), "{error}");
        }
        assert_eq!((with(model, key, Json::Null), with(model, key, json!(30.0))), (Ok(()), Ok(())));
    }
    for bad in [json!(-1e-6), json!(1e60)] {
        let error = with("gemma3", "rms_norm_eps", bad).unwrap_err();
        assert!(error.contains("rms_norm_eps") && error.contains("at least 0"), "{error}");
    }
    assert_eq!(with("gemma3", "rms_norm_eps", json!(0)), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn nonsense_is_refused(
        case in 0usize..24,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), nonsense()), 1..4),
    ) {
        let mut config = configs().swap_remove(case);
        for (place, inner, value) in changes {
            let keys: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
            let entry = &mut config[place.get(&keys)];
            let keys: Vec<String> = entry.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default();
            // Half of the changes to an object go into it.
            if keys.is_empty() || inner.index(2) == 0 { *entry = value } else { entry[inner.get(&keys)] = value }
        }
        if let Ok(model) = Model::build(&Source::of_config(config)) {
            prop_assert!(model.target.logits().is_some());
            prop_assert!(!model.target.to_string().is_empty());
        }
    }
}
