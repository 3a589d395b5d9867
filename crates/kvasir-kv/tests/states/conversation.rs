//! Prefix hits with recurrent states: conversations, edited and branched turns, prompts that
//! diverge inside a message, and a long sequence.

use crate::device::{Expected, StateDevice};
use kvasir_kv::{
    Cache, CacheConfig, CacheKind, ClaimRow, Lookup, Plan, Position, SeqId, StateConfig, StepId, Token, build,
};
use kvasir_testkit::Random;

const BLOCK: u32 = 16;
const BLOCK_KINDS: [CacheKind; 2] = [CacheKind::Paged, CacheKind::Radix];

/// A cache and a device that run one request at a time.
struct Server {
    cache: Box<dyn Cache>,
    device: StateDevice,
    step: u64,
}

impl Server {
    fn new(kind: CacheKind, states: StateConfig, slots: u32) -> Self {
        let config = CacheConfig { block_size: BLOCK, states: Some(states), ..CacheConfig::new(slots) };
        let device = StateDevice::new(states.slots(), states.live);
        Self { cache: build(kind, &config).unwrap(), device, step: 0 }
    }

    /// Runs a step that feeds the tokens of `seq` from its length to `upto`.
    fn feed(&mut self, seq: SeqId, tokens: &[Token], upto: usize) {
        let from = self.cache.next_position(seq).unwrap() as usize;
        self.step += 1;
        let fed = (upto - from) as u32;
        self.cache.claim(StepId(self.step), &[ClaimRow::new(seq, fed)]).unwrap();
        let mut plan = Plan::default();
        self.cache.plan(StepId(self.step), &mut plan).unwrap();
        let tokens = tokens[..upto].to_vec();
        self.device.submit(&plan, vec![Expected { tokens, fed, drafts: 0 }]);
        self.device.run();
        self.cache.retire(StepId(self.step)).unwrap();
    }

    /// Runs a request whose messages end at `marks`. The first `prompt` of `tokens` are its prompt,
    /// the others its answer. Returns the length of its prefix hit.
    fn request(&mut self, tokens: &[Token], prompt: usize, marks: &[Position], chunk: usize) -> u32 {
        let seq = self.cache.open().unwrap();
        let prefix = self.cache.prefix().unwrap();
        let hit = prefix.attach(seq, &tokens[..prompt], 0, u32::MAX, Lookup::default()).unwrap().tokens;
        self.cache.mark_checkpoints(seq, marks).unwrap();
        self.cache.mark_checkpoints(seq, &[prompt as Position]).unwrap();
        let mut at = hit as usize;
        while at < tokens.len() {
            at = if at < prompt { (at + chunk).min(prompt) } else { at + 1 };
            self.feed(seq, tokens, at);
            self.cache.check().unwrap();
        }
        self.cache.prefix().unwrap().publish(seq, tokens, tokens.len() as u32).unwrap();
        self.cache.close(seq).unwrap();
        hit
    }
}

fn tokens(random: &mut Random, count: u32) -> Vec<Token> {
    (0..count).map(|_| random.between(0, 1000)).collect()
}

fn config(checkpoints: u32, interval: u32) -> StateConfig {
    StateConfig { live: 4, checkpoints, tail_rows: 4, interval }
}

/// Every turn computes its newest message and less than two blocks more, even a turn that branches
/// off at an earlier message.
#[test]
fn a_turn_computes_only_its_newest_message() {
    for kind in BLOCK_KINDS {
        let mut random = Random::new(7);
        let mut server = Server::new(kind, config(64, 0), 1 << 14);
        let mut conversation: Vec<Token> = tokens(&mut random, 300);
        let mut ends: Vec<Position> = vec![300];
        for turn in 0..20 {
            let message = random.between(5, 90);
            conversation.extend(tokens(&mut random, message));
            ends.push(conversation.len() as Position);
            let prompt = conversation.len();
            let answer = random.between(3, 60);
            conversation.extend(tokens(&mut random, answer));
            let hit = server.request(&conversation, prompt, &ends, 128);
            ends.push(conversation.len() as Position);
            let computed = prompt as u32 - hit;
            // A hit ends at a block boundary.
            assert!(
                turn == 0 || computed <= message + 2 * BLOCK,
                "{kind} turn {turn}: {computed} tokens are computed for a message of {message}"
            );
        }
        for &end in &ends[1..ends.len() - 1] {
            let mut branch = conversation[..end as usize].to_vec();
            branch.extend(tokens(&mut random, 20));
            let prompt = branch.len();
            let hit = server.request(&branch, prompt, &ends, 128);
            assert!(end - hit < 2 * BLOCK, "{kind}: a branch at {end} hits {hit}");
        }
    }
}

/// A prefix shared by prompts that diverge inside a message is recomputed once, from the last
/// regular checkpoint. The third prompt hits all of it.
#[test]
fn a_prefix_up_to_a_divergence_is_recomputed_once() {
    for kind in BLOCK_KINDS {
        for interval in [0, 256] {
            let mut random = Random::new(3);
            let mut server = Server::new(kind, config(64, interval), 1 << 14);
            let common = tokens(&mut random, 1500);
            let mut prompts = (0..4).map(|_| {
                let mut prompt = common.clone();
                prompt.extend(tokens(&mut random, 100));
                prompt
            });
            let mut hits = Vec::new();
            for prompt in prompts.by_ref() {
                hits.push(server.request(&prompt, prompt.len(), &[], 512));
            }
            let whole = 1500 / BLOCK * BLOCK;
            let at_interval = whole.checked_div(interval).map_or(0, |count| count * interval);
            assert_eq!(hits, [0, at_interval, whole, whole], "{kind} {interval}");
        }
    }
}

/// After 100,000 tokens with forks and rewinds, all slots and states are free again.
#[test]
fn a_long_sequence_leaves_all_slots_free() {
    for kind in BLOCK_KINDS {
        let mut random = Random::new(11);
        let mut server = Server::new(kind, config(200, 512), 1 << 18);
        let group = server.cache.shape().groups.states().unwrap();
        let all = tokens(&mut random, 100_000);
        let seq = server.cache.open().unwrap();
        let mut at = 0;
        while at < all.len() {
            at = (at + 900).min(all.len());
            server.feed(seq, &all, at);
            if random.chance(10) {
                let fork = server.cache.sequences().unwrap().fork(seq, 1).unwrap()[0];
                let len = server.cache.len(fork).unwrap() as usize;
                assert!(at - len < 512, "the fork at {at} has length {len}");
                server.feed(fork, &all, (len + 70).min(all.len()));
                server.cache.close(fork).unwrap();
            }
            if random.chance(10) {
                let to = random.between(at as u32 / 2, at as u32);
                let floor = server.cache.rewind().unwrap().rewind_floor(seq, to).unwrap();
                assert!(to - floor < 512, "the rewind floor of {to} is {floor}");
                server.cache.rewind().unwrap().rewind_to(seq, floor).unwrap();
                at = floor as usize;
            }
        }
        server.cache.check().unwrap();
        server.cache.prefix().unwrap().publish(seq, &all, all.len() as u32).unwrap();
        server.cache.close(seq).unwrap();
        server.cache.prefix().unwrap().evict(u32::MAX).unwrap();
        server.cache.check().unwrap();
        assert_eq!(server.cache.usage().free, server.cache.shape().capacity);
        assert_eq!(server.cache.usage_of(group).free, 4);
        let hit = server.cache.prefix().unwrap().lookup(&all, 0);
        assert_eq!(hit.tokens, 0);
    }
}
