//! Divisions of models with and without recurrent states, and of random ones against the bound on
//! their sum.

use crate::config::EngineConfig;
use crate::config::facts::{Facts, GroupFacts};
use crate::config::memory_division::{MemoryDivision, default_interval};
use kvasir_kv::{CacheKind, GroupKind, StateConfig, WindowConfig};
use kvasir_testkit::{Random, rounds};

const STATE: u64 = 1_000_000;
const TAIL_ROW: u64 = 10_000;
const SLOT: u64 = 1000;

fn dense(bytes: Option<u64>) -> Facts {
    Facts {
        max_model_len: 16384,
        free_bytes: bytes,
        groups: vec![GroupFacts::full(SLOT)],
        ..Facts::default()
    }
}

/// A model with recurrent states and draft chains of four tokens.
fn hybrid(bytes: Option<u64>) -> Facts {
    let states = GroupFacts { kind: GroupKind::State, slot_bytes: STATE, tail_row_bytes: TAIL_ROW };
    Facts { groups: vec![GroupFacts::full(SLOT), states], longest_draft: 4, ..dense(bytes) }
}

/// All of the memory.
fn whole() -> EngineConfig {
    EngineConfig { memory_utilization: Some(1.0), ..EngineConfig::default() }
}

fn divided(facts: &Facts, config: &EngineConfig) -> MemoryDivision {
    let resolved = config.resolve(facts).unwrap();
    let states = resolved.division.states.map(|states| states.config);
    assert_eq!((resolved.cache.capacity, resolved.cache.states), (resolved.division.slots, states));
    resolved.division
}

fn states(facts: &Facts, config: &EngineConfig) -> StateConfig {
    divided(facts, config).states.unwrap().config
}

fn error(facts: &Facts, config: &EngineConfig) -> String {
    config.resolve(facts).unwrap_err().to_string()
}

#[test]
fn without_states_all_memory_holds_kv() {
    let slots = |facts, config: &EngineConfig| divided(&facts, config).slots;
    let share = |share| EngineConfig { memory_utilization: Some(share), ..EngineConfig::default() };
    assert_eq!(slots(dense(Some(1_000_000_000)), &EngineConfig::default()), 900_000);
    assert_eq!(slots(dense(Some(1_000_000_000)), &share(0.5)), 500_000);
    assert_eq!(slots(dense(Some(1_000_000_000)), &EngineConfig { engines: 2, ..share(0.5) }), 250_000);
    assert_eq!(slots(dense(None), &share(0.5)), 16384, "a sequence of maximum length if unknown");

    let capped = Facts { max_default_capacity: Some(32768), ..dense(Some(1_000_000_000)) };
    let division = divided(&capped, &EngineConfig::default());
    assert_eq!((division.slots, division.is_capped, division.states), (32768, true, None));
    assert_eq!(division.to_string(), "32768 slots of K/V in 32.8 MB");
    let small = Facts { free_bytes: Some(20_000_000), ..capped.clone() };
    let division = divided(&small, &EngineConfig::default());
    assert_eq!((division.slots, division.is_capped), (18_000, false));
    assert!(!divided(&Facts { free_bytes: None, ..capped }, &EngineConfig::default()).is_capped);
    assert!(error(&dense(Some(10_000)), &whole()).contains("no room for a block of 16 slots of 1.0 kB"));
}

/// A model with a window of 500 tokens, whose layers take three quarters of the K/V of a token, and
/// draft chains of four tokens.
fn windowed(bytes: Option<u64>) -> Facts {
    let window = GroupFacts { kind: GroupKind::Window(500), slot_bytes: 3 * SLOT, tail_row_bytes: 0 };
    Facts { groups: vec![GroupFacts::full(SLOT), window], longest_draft: 4, ..dense(bytes) }
}

/// Slots of the full group and of the window.
fn slots(facts: &Facts, config: &EngineConfig) -> (u32, u32) {
    let division = divided(facts, config);
    let [window] = division.windows[..] else { panic!("{division:?}") };
    assert_eq!((window.config.window, window.config.longest_draft), (500, 4));
    assert_eq!((division.slot_bytes, window.slot_bytes), (SLOT, 3 * SLOT));
    (division.slots, window.config.capacity)
}

#[test]
fn windows_are_divided_for_typical_sequences() {
    let config = EngineConfig { max_num_batched_tokens: Some(1000), ..whole() };
    // A sequence holds 499 + 4 rows and three blocks of 16; a step of 1,000 rows has 63 blocks.
    let (of_sequence, of_step) = (499 + 4 + 3 * 16, 1008);
    let facts = windowed(Some(100_000_000));
    let count = (100_000_000 - 3000 * of_step) / (8192 * SLOT + 3000 * of_sequence);
    let window = (count * of_sequence + of_step) / 16 * 16;
    let full = (100_000_000 - 3000 * (count * of_sequence + of_step)) / SLOT;
    assert_eq!((count, slots(&facts, &config)), (9, (full as u32, window as u32)));
    let text = format!(
        "{full} slots of K/V in {:.1} MB; {window} slots for windows of 500 tokens in {:.1} MB",
        full as f64 / 1e3,
        3e-3 * window as f64
    );
    assert_eq!(divided(&facts, &config).to_string(), text);

    let one = EngineConfig { max_num_seqs: Some(1), ..config.clone() };
    assert_eq!(slots(&facts, &one).1, (of_sequence + of_step) as u32 / 16 * 16);
    let overlap = EngineConfig { overlap: Some(true), ..one.clone() };
    assert_eq!(slots(&facts, &overlap).1, (of_sequence + 2000) as u32 / 16 * 16);
    // The full group has fewer slots than the window needs, so both have as many as if joined.
    let small = windowed(Some(4_000_000));
    assert_eq!(slots(&small, &one), (1000, 992));
    let joined = divided(&small, &EngineConfig { cache: Some(CacheKind::Tree), ..one });
    assert_eq!((joined.slots, joined.slot_bytes, joined.windows.len()), (1000, 4 * SLOT, 0));
    assert_eq!(joined.joined_windows.unwrap().to_string(), "a tree cache has one pool");
}

#[test]
fn kv_capacity_is_allocated_before_windows() {
    let facts = windowed(Some(100_000_000));
    let config = |capacity, sequences| EngineConfig {
        kv_capacity: Some(capacity),
        max_num_seqs: Some(sequences),
        max_num_batched_tokens: Some(1008),
        ..EngineConfig::default()
    };
    // Beside 60,000 slots and a step there is room for 22 windows of 551 slots.
    assert_eq!(slots(&facts, &config(60_000, 512)), (60_000, (22 * 551 + 1008) / 16 * 16));
    assert_eq!(slots(&facts, &config(60_000, 3)), (60_000, (3 * 551 + 1008) / 16 * 16));
    assert_eq!(slots(&facts, &config(1000, 512)), (1000, 992));
    let fitting = (100_000_000 - 3000 * (551 + 1008)) / SLOT;
    assert_eq!(slots(&facts, &config(fitting as u32, 512)).0, fitting as u32);
    let refused = error(&facts, &config(fitting as u32 + 1, 512));
    assert!(refused.ends_with(&format!("leave free holds {fitting} slots")), "{refused}");
    // With unlimited memory, windows take at most as much as the full group, beside one step.
    let unlimited = EngineConfig { overcommit: true, ..config(60_000, 512) };
    let count = 60_000_000 / (551 * 3000);
    assert_eq!(slots(&facts, &unlimited), (60_000, (count * 551 + 1008) / 16 * 16));
    assert_eq!(slots(&windowed(None), &config(60_000, 512)), slots(&facts, &unlimited));
}

#[test]
fn a_model_of_window_layers_only_has_a_full_group_without_bytes() {
    let window = GroupFacts { kind: GroupKind::Window(500), slot_bytes: SLOT, tail_row_bytes: 0 };
    let facts = Facts { groups: vec![GroupFacts::full(0), window], ..dense(Some(10_000_000)) };
    let config = EngineConfig { max_num_seqs: Some(2), max_num_batched_tokens: Some(512), ..whole() };
    let division = divided(&facts, &config);
    assert_eq!((division.slots, division.slot_bytes), (2 * 16384, 0));
    assert_eq!(division.windows[0].config.capacity, (2 * 547 + 512) / 16 * 16);
}

#[test]
fn states_are_divided_for_typical_sequences() {
    let facts = hybrid(Some(1_000_000_000));
    let division = divided(&facts, &whole());
    let parts = division.states.unwrap();
    // 125 MB for checkpoints; then 8,192 slots and a state with a tail of four rows per sequence.
    let config = StateConfig { live: 94, checkpoints: 125, tail_rows: 4, interval: 512 };
    assert_eq!((parts.config, parts.checkpoint_bytes()), (config, 125_000_000));
    assert_eq!(parts.live_bytes(), 94 * (STATE + 4 * TAIL_ROW));
    assert_eq!(u64::from(division.slots), (875_000_000 - parts.live_bytes()) / SLOT);
    let text = "777240 slots of K/V in 777.2 MB; 94 live states in 97.8 MB, 125 checkpoints in 125.0 MB at \
                intervals of 512 tokens";
    assert_eq!(division.to_string(), text);

    assert_eq!(states(&facts, &EngineConfig { max_num_seqs: Some(7), ..whole() }).live, 7);
    let short = EngineConfig { max_model_len: Some(1000), ..whole() };
    assert_eq!(states(&facts, &short).live, (875_000_000 / 2_040_000) as u32);
    let one = EngineConfig { cache: Some(CacheKind::Contiguous), ..whole() };
    assert_eq!(states(&facts, &one).live, 1);
    let without_drafts = Facts { longest_draft: 0, ..facts };
    assert_eq!(states(&without_drafts, &whole()).live, (875_000_000 / 9_192_000) as u32);
}

#[test]
fn every_cache_is_built_with_the_pool_of_states() {
    for &kind in CacheKind::ALL {
        let config = EngineConfig { cache: Some(kind), kv_capacity: Some(4096), ..EngineConfig::default() };
        let resolved = config.resolve(&hybrid(Some(1_000_000_000))).unwrap();
        let live = resolved.cache.states.unwrap().live;
        assert_eq!(live, resolved.limits.max_num_seqs.min(4096 / resolved.cache.block_size), "{kind}");
        let core = resolved.core().unwrap();
        let group = core.cache().shape().groups.states().unwrap();
        assert_eq!(core.cache().usage_of(group).free, live, "{kind}");
        let dense = config.resolve(&dense(Some(1_000_000_000))).unwrap().core().unwrap();
        assert_eq!(dense.cache().shape().groups.states(), None, "{kind}");
    }
}

#[test]
fn given_state_options_replace_the_defaults() {
    let facts = hybrid(Some(1_000_000_000));
    let of = |memory, interval| {
        let config = EngineConfig { state_memory: Some(memory), state_interval: Some(interval), ..whole() };
        let states = states(&facts, &config);
        (states.checkpoints, states.interval)
    };
    assert_eq!([of(0, 0), of(STATE - 1, 7), of(600_500_000, 99)], [(0, 0), (0, 7), (600, 99)]);
    let config = EngineConfig { state_interval: Some(1 << 31), ..whole() };
    assert!(error(&facts, &config).contains("state_interval 2147483648 is more than"));
    let config = EngineConfig { state_memory: Some(u64::MAX), ..whole() };
    assert!(
        error(&facts, &config).contains("state_memory 18446744073709551615 is more than 16777216 states")
    );

    let refused = "needs a model with recurrent layers";
    let config = EngineConfig { state_memory: Some(5), ..whole() };
    assert_eq!(error(&dense(None), &config), format!("state_memory 5 {refused}"));
    let config = EngineConfig { state_interval: Some(0), ..whole() };
    assert_eq!(error(&dense(None), &config), format!("state_interval 0 {refused}"));
}

#[test]
fn default_capacity_bounds_checkpoints() {
    let facts = Facts { max_default_capacity: Some(32768), ..hybrid(Some(100_000_000_000)) };
    let division = divided(&facts, &whole());
    assert_eq!((division.slots, division.is_capped), (32768, true));
    // One checkpoint per 256 slots.
    assert_eq!((division.states.unwrap().config.checkpoints, states(&facts, &whole()).live), (128, 512));
    let small = Facts { max_default_capacity: Some(256), ..facts };
    assert_eq!(states(&small, &whole()).checkpoints, 4);
    assert_eq!(states(&small, &whole()).live, 16, "a block per sequence");
}

#[test]
fn kv_capacity_is_allocated_before_states() {
    let facts = hybrid(Some(100_000_000));
    let capacity = |slots| EngineConfig { kv_capacity: Some(slots), ..EngineConfig::default() };
    // K/V leaves 40 MB. Checkpoints get an eighth of all memory, 12.5 MB.
    let division = divided(&facts, &capacity(60_000));
    assert_eq!((division.slots, division.states.unwrap().config.checkpoints), (60_000, 12));
    assert_eq!(states(&facts, &capacity(60_000)).live, (28_000_000 / 1_040_000) as u32);
    assert_eq!(states(&facts, &EngineConfig { max_num_seqs: Some(3), ..capacity(60_000) }).live, 3);
    // K/V leaves 10 MB. Checkpoints get half of it.
    assert_eq!(
        (states(&facts, &capacity(90_000)).checkpoints, states(&facts, &capacity(90_000)).live),
        (5, 4)
    );

    let full = error(&facts, &capacity(99_000));
    let numbers = "the weights leave 100.0 MB for K/V and recurrent states, less than one sequence needs: \
                   4 checkpoints of 1.0 MB each, a live state of 1.0 MB and 99000 slots of K/V of 1.0 kB \
                   each";
    assert_eq!(full, format!("kv_capacity 99000 cannot be combined with overcommit off: {numbers}"));
    let none = EngineConfig { state_memory: Some(0), ..capacity(98_000) };
    assert_eq!((states(&facts, &none).live, states(&facts, &none).checkpoints), (1, 0));
    assert!(error(&facts, &capacity(100_001)).contains("the weights leave free holds 100000 slots"));
    let two = EngineConfig { engines: 2, ..capacity(60_000) };
    assert!(error(&facts, &two).contains("the weights leave 50.0 MB"));

    // With overcommit, states take at most as much as K/V.
    let overcommitted = EngineConfig { overcommit: true, ..capacity(200_000) };
    let config = states(&facts, &overcommitted);
    assert_eq!((config.live, config.checkpoints), ((200_000_000 / 1_040_000) as u32, 200));
    assert_eq!(states(&hybrid(None), &capacity(200_000)), config);
    let both = EngineConfig { memory_utilization: Some(0.5), ..capacity(1000) };
    assert!(error(&facts, &both).contains("each of them sets the capacity"));
    assert!(error(&facts, &capacity(15)).contains("less than a block of 16 slots"));
    assert!(error(&facts, &capacity(0)).contains("must be at least 1"));
}

#[test]
fn less_than_one_sequence_is_refused_with_its_numbers() {
    // Four checkpoints, a live state, and a block of 16 slots.
    let least = 4 * STATE + STATE + 4 * TAIL_ROW + 16 * SLOT;
    let division = divided(&hybrid(Some(least)), &whole());
    assert_eq!((division.slots, division.bytes()), (16, least));
    let numbers = "memory_utilization 1 leaves 5.1 MB for K/V and recurrent states, less than one sequence \
                   needs: 4 checkpoints of 1.0 MB each, a live state of 1.0 MB and 16 slots of K/V of 1.0 kB \
                   each";
    assert_eq!(error(&hybrid(Some(least - 1)), &whole()), numbers);
    let no_checkpoints = EngineConfig { state_memory: Some(0), ..whole() };
    assert_eq!(states(&hybrid(Some(least - 1)), &no_checkpoints).checkpoints, 0);
    let greedy = EngineConfig { state_memory: Some(90 * STATE), ..whole() };
    assert!(error(&hybrid(Some(90 * STATE)), &greedy).contains("90 checkpoints of 1.0 MB"));
}

#[test]
fn interval_follows_the_size_of_a_state() {
    let of = |state, slot| default_interval(state, slot);
    assert_eq!([of(1, 1000), of(256_000, 1000), of(257_000, 1000)], [256, 256, 512]);
    assert_eq!([of(512_000, 1000), of(2_000_000, 1000), of(u64::MAX, 1)], [512, 512, 512]);
}

#[test]
fn division_never_exceeds_the_memory() {
    for seed in 0..rounds(2000) {
        let mut random = Random::new(seed);
        let power = |random: &mut Random, most| {
            let exponent = random.between(1, most);
            1 + random.below(1 << exponent)
        };
        let bytes = power(&mut random, 40);
        let mut facts = dense(Some(bytes));
        facts.groups[0].slot_bytes = power(&mut random, 20);
        facts.max_model_len = random.between(2, 50_000);
        facts.longest_draft = random.below(20) as u32;
        facts.max_default_capacity = random.one_in(2).then(|| random.between(16, 100_000));
        for _ in 0..random.below(3) {
            let kind = GroupKind::Window(power(&mut random, 14) as u32 * 3 + facts.groups.len() as u32);
            facts.groups.push(GroupFacts { kind, slot_bytes: power(&mut random, 20), tail_row_bytes: 0 });
        }
        let has_states = random.one_in(2);
        if has_states {
            let (slot_bytes, tail_row_bytes) = (power(&mut random, 28), power(&mut random, 16));
            facts.groups.push(GroupFacts { kind: GroupKind::State, slot_bytes, tail_row_bytes });
        }
        let is_given = random.one_in(3);
        let config = EngineConfig {
            kv_capacity: is_given.then(|| random.between(16, 1 << 20)),
            memory_utilization: (!is_given).then(|| random.below(101) as f64 / 100.0),
            engines: random.below(4) as u32,
            max_num_seqs: random.one_in(2).then(|| random.between(1, 1000)),
            max_num_batched_tokens: random.one_in(2).then(|| random.between(1, 4096)),
            overlap: Some(random.one_in(2)),
            cache: random.one_in(4).then_some(CacheKind::Tree).filter(|_| !is_given),
            state_memory: (has_states && random.one_in(3)).then(|| random.below(bytes)),
            ..EngineConfig::default()
        };
        let Ok(resolved) = config.resolve(&facts) else { continue };
        let division = resolved.division;
        let share = if is_given { 1.0 } else { config.memory_share().unwrap() };
        assert!(division.bytes() <= (bytes as f64 * share) as u64, "seed {seed}: {division:?} of {bytes}");
        assert!(division.slots >= if resolved.kind == CacheKind::Tree { 1 } else { 16 }, "seed {seed}");
        for window in &division.windows {
            let WindowConfig { window: rows, capacity, .. } = window.config;
            assert!(capacity <= division.slots, "seed {seed}");
            // One sequence and one step fit, unless the full group is smaller.
            let needed = rows + resolved.limits.max_num_batched_tokens;
            assert!(capacity >= needed.min(division.slots / 16 * 16), "seed {seed}: {division:?}");
        }
        if let Some(states) = division.states {
            let live = states.config.live;
            assert!((1..=resolved.limits.max_num_seqs).contains(&live), "seed {seed}: {live}");
        }
    }
}
