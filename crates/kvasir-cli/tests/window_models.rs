//! Models with sliding-window layers as input of `generate`, `inspect` and `doctor`: recorded
//! tokens, and the memory of the window groups.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod command;

use command::{json, model, recorded, run};
use kvasir::{EngineConfig, KvType, MemoryDivision, OpenedModel};
use kvasir_formats::DType;
use kvasir_kv::{CacheConfig, CacheKind, ClaimRow, StepId, build};
use serde_json::{Value as Json, json};

#[test]
fn window_models_give_the_recorded_tokens() {
    for case in ["gemma3", "gemma4_ple", "gpt_oss", "olmo3"] {
        let (ids, tokens) = recorded(case, "p64");
        let path = model(case);
        let args =
            ["generate", &path, "--prompt-ids", &ids, "--max-tokens", "32", "--json", "--precision", "exact"];
        let option_sets: [&[&str]; 6] = [
            &["--cache", "radix", "--max-num-batched-tokens", "24"],
            &["--cache", "paged", "--block-size", "4", "--spec", "ngram"],
            &["--cache", "cells", "--policy", "prefill-first"],
            &["--cache", "contiguous"],
            &["--cache", "contiguous", "--rings", "on"],
            &["--policy", "rectangular", "--chunk-size", "64", "--max-model-len", "512"],
        ];
        for options in option_sets {
            let answer = json(&[&args[..], options].concat());
            assert_eq!(answer["token_ids"], tokens, "{case} {options:?}");
        }
    }
}

#[test]
fn inspect_and_doctor_print_the_slots_of_windows() {
    let path = model("gemma3");
    let division = &json(&["inspect", &path, "--json"])["memory"]["division"];
    assert_eq!((&division["slots"], &division["joined_windows"]), (&json!(32768), &Json::Null));
    assert_eq!(division["windows"][0]["config"]["window"], 16);
    let text = String::from_utf8(run(&["inspect", &path]).stdout).unwrap();
    assert!(text.contains("by default on this machine: 32768 slots of K/V in "), "{text}");
    assert!(text.contains(" slots for windows of 16 tokens in "), "{text}");

    let output = run(&["doctor", &path, "--quick", "--port", "0", "--json"]);
    let report: Json = serde_json::from_slice(&output.stdout).unwrap();
    let check = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "context").unwrap();
    let found = check["found"].as_str().unwrap();
    assert!(found.contains(" slots for windows of 16 tokens in "), "{found}");
    assert!(check["values"]["window_slots"].as_u64() > Some(0), "{check}");
}

/// Tokens of the context whose memory is tested.
const CONTEXT: u32 = 32_768;
/// Maximum tokens of a step.
const STEP: u32 = 512;

/// The division of memory for one sequence of [`CONTEXT`] tokens of Gemma 4 E2B.
fn gemma4_e2b(config: EngineConfig) -> (OpenedModel, MemoryDivision) {
    let config = EngineConfig {
        kv_capacity: Some(CONTEXT),
        max_num_seqs: Some(1),
        max_num_batched_tokens: Some(STEP),
        ..config
    };
    let opened =
        OpenedModel::random(&kvasir_bench::shapes::shape("gemma-4-e2b").unwrap(), DType::BF16).unwrap();
    let division = opened.memory_division(&config, KvType::Bf16, Some(1 << 40), None).unwrap();
    (opened, division)
}

#[test]
fn gemma_4_needs_memory_for_its_windows_and_full_layers() {
    let (opened, division) = gemma4_e2b(EngineConfig::default());
    let layers = &opened.model.target.layers;
    // Bytes of all tokens in full layers, and of the window in sliding-window layers.
    let needed: u64 = layers
        .iter()
        .map(|layer| {
            let tokens = layer.window.unwrap_or(CONTEXT).min(CONTEXT);
            u64::from(tokens) * KvType::Bf16.slot_bytes(&[*layer]) as u64
        })
        .sum();
    let taken = division.kv_bytes();
    assert!(taken >= needed && taken * 10 <= needed * 11, "{taken} bytes, {needed} are needed");
    // The pools of the executor have these slots and a dummy block per layer group.
    let windows = division.windows.iter().map(|window| window.config).collect();
    let config = CacheConfig { windows, ..CacheConfig::new(division.slots) };
    let mut cache = build(CacheKind::Radix, &config).unwrap();
    let slots = cache.shape().pool_slots();
    let sizes = [(slots[0], division.slot_bytes), (slots[1], division.windows[0].slot_bytes)];
    let pools: u64 = sizes.iter().map(|(slots, bytes)| u64::from(*slots) * bytes).sum();
    assert!(pools * 10 <= needed * 11, "pools of {pools} bytes, {needed} are needed");
    // A sequence of that length fits into them, in steps of maximum size.
    let seq = cache.open().unwrap();
    let mut len = 0;
    for step in 1.. {
        let tokens = STEP.min(CONTEXT - len);
        if tokens == 0 {
            break;
        }
        cache.claim(StepId(step), &[ClaimRow::new(seq, tokens)]).unwrap();
        cache.retire(StepId(step)).unwrap();
        len += tokens;
    }
    // With joined windows, K and V take more than 2.5 times as many bytes.
    let (_, joined) = gemma4_e2b(EngineConfig { transfers_kv: true, ..EngineConfig::default() });
    assert!(joined.kv_bytes() > taken * 5 / 2 && joined.windows.is_empty(), "{joined:?}");
    assert_eq!(joined.slot_bytes, KvType::Bf16.slot_bytes(layers) as u64);
}
