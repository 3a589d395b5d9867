//! How engines divide the memory that the weights leave, for the recorded models of all
//! architectures.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir::{BackendKind, EngineConfig, KvType, MemoryDivision, OpenedModel, Precision};
use kvasir_testkit::paths;
use std::fs;

/// Bytes of memory that the weights leave.
const FREE_BYTES: u64 = 100_000_000;

fn opened(name: &str) -> OpenedModel {
    OpenedModel::open(&paths::model(name)).unwrap()
}

/// Divides [`FREE_BYTES`].
fn divide(opened: &OpenedModel, max_default_capacity: Option<u32>) -> MemoryDivision {
    let config = EngineConfig { memory_utilization: Some(1.0), ..EngineConfig::default() };
    let free = Some(opened.stored_bytes() + FREE_BYTES);
    opened.memory_division(&config, KvType::Bf16, free, max_default_capacity).unwrap()
}

#[test]
fn every_model_divides_its_memory_among_kv_windows_and_states() {
    let (mut hybrids, mut windowed) = (0, 0);
    for folder in fs::read_dir(paths::repository().join("testdata/models")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        // EAGLE-3 heads cannot be opened as models.
        let Ok(opened) = OpenedModel::open(&paths::model(&name)) else {
            assert!(name.starts_with("eagle3"), "{name}");
            continue;
        };
        let target = &opened.model.target;
        let division = divide(&opened, None);
        let window_bytes: u64 = division.windows.iter().map(|window| window.slot_bytes).sum();
        let slot_bytes = division.slot_bytes + window_bytes;
        assert_eq!(slot_bytes, KvType::Bf16.slot_bytes(&target.layers) as u64, "{name}");
        let unused = FREE_BYTES - division.bytes();
        // Window pools consist of whole blocks. Without full layers, the number of sequences bounds
        // the slots.
        let is_used = unused < slot_bytes + 16 * window_bytes || division.slot_bytes == 0;
        assert!(is_used, "{name}: {unused} bytes are unused");
        assert_eq!(division.states.is_some(), target.is_recurrent(), "{name}");
        windowed += u32::from(!division.windows.is_empty());
        let Some(states) = division.states else { continue };
        hybrids += 1;
        assert_eq!(states.state_bytes, 4 * target.state_elements() as u64, "{name}");
        assert_eq!((states.tail_bytes, states.config.tail_rows), (0, 0), "{name}");
        assert!(states.checkpoint_bytes() <= FREE_BYTES / 8 && states.config.checkpoints >= 4, "{name}");
        assert!(states.config.live > 1 && states.config.interval >= 256, "{name}");

        let capped = divide(&opened, Some(4096));
        assert_eq!((capped.slots, capped.is_capped), (4096, true), "{name}");
    }
    assert!(hybrids >= 8 && windowed >= 4, "{hybrids} hybrids, {windowed} with windows");
}

#[test]
fn drafts_take_kv_slots_and_tails() {
    let alone = divide(&opened("qwen3_5_mtp"), None);
    let drafting = opened("qwen3_5_mtp").speculate(&"mtp:3".parse().unwrap()).unwrap();
    let states = divide(&drafting, None).states.unwrap();
    let rows = drafting.model.target.states.iter().map(|state| state.tail_elements as u64 * 4);
    assert_eq!((states.config.tail_rows, states.tail_bytes), (3, 3 * rows.sum::<u64>()));
    let layers = &drafting.draft().unwrap().0.layers;
    let draft_bytes = KvType::Bf16.slot_bytes(layers) as u64;
    assert_eq!(divide(&drafting, None).slot_bytes, alone.slot_bytes + draft_bytes);

    let ngram = opened("qwen3_5").speculate(&"ngram:tokens=6".parse().unwrap()).unwrap();
    assert_eq!(divide(&ngram, None).states.unwrap().config.tail_rows, 6);
}

#[test]
fn unpacked_matrices_and_mapped_tables_count_as_taken() {
    let load = |opened: OpenedModel| opened.load(BackendKind::Cpu, Precision::Auto, Some(1)).unwrap();
    let loaded = load(opened("qwen3_bf16"));
    let cpu = loaded.cpu_model().unwrap();
    let table = loaded.opened.checkpoint.tensor("model.embed_tokens.weight").unwrap().bytes.len() as u64;
    assert_eq!(cpu.mapped_bytes(), table);
    let unpacked = cpu.unpacked_bytes() as u64;
    assert!(unpacked > 0);
    assert_eq!(loaded.pending_weight_bytes(), unpacked + table);
    cpu.pack().unwrap();
    assert_eq!(loaded.pending_weight_bytes(), table);

    // The weights of a draft model count, too.
    let spec = format!("draft:{}", paths::model("qwen3_bf16").display());
    let drafting = load(opened("qwen3_bf16").speculate(&spec.parse().unwrap()).unwrap());
    assert_eq!(drafting.pending_weight_bytes(), 2 * (unpacked + table));
    let plain = opened("qwen3_bf16").load(BackendKind::Plain, Precision::Auto, None).unwrap();
    assert_eq!(plain.pending_weight_bytes(), 0);
}

#[test]
fn less_than_one_sequence_is_refused_with_its_numbers() {
    let opened = opened("qwen3_5");
    let free = Some(opened.stored_bytes() + 20_000);
    let config = EngineConfig::default();
    let error = opened.memory_division(&config, KvType::Bf16, free, None).unwrap_err().to_string();
    assert!(error.contains("memory_utilization 0.9 leaves 18.0 kB"), "{error}");
    assert!(error.contains("4 checkpoints of ") && error.contains("16 slots of K/V of "), "{error}");
}
