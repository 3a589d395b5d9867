//! llama.cpp's slots: places for concurrent requests, each with the tokens of its last request.
//!
//! Slots own no K/V, which the prefix cache finds by its tokens. They exist where they can be saved
//! to files. Each API key has slots of its own. A request without a slot gets the idle one with the
//! longest common prefix, else an unused one, else the least recently used one.

use crate::host::lock::{Mutex, locked};
use kvasir_kv::Token;
use std::{collections::BTreeMap, sync::Arc};

/// Maximum tokens of all slots: beyond it, the least recently used idle slots become empty.
const MAX_TOKENS: usize = 1 << 24;
/// A prompt is assigned to a slot that has at least one of this many of its tokens.
const SIMILAR: usize = 10;

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotContent {
    /// Tokens of prompt and answer.
    pub(crate) tokens: Arc<[Token]>,
    /// Length that the request could reach.
    pub(crate) final_len: u32,
}

/// A slot: an API key, and a number within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId {
    pub(crate) owner: u64,
    pub(crate) number: u32,
}

#[derive(Debug)]
struct Entry {
    content: Option<SlotContent>,
    running: u32,
    used: u64,
}

/// The slots of all keys.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<SlotId, Entry>,
    uses: u64,
    tokens: usize,
}

/// The state of a slot that is not idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy;

impl Slots {
    /// Begins a request with this prompt in a slot of the key, which has `count` slots. `None` if no
    /// number is requested and none is idle.
    pub(crate) fn begin(
        self: &Arc<Self>,
        owner: u64,
        requested: Option<u32>,
        count: u32,
        prompt: &[Token],
        final_len: u32,
    ) -> Option<SlotRecorder> {
        let mut table = locked(&self.0);
        let number = requested.or_else(|| table.choose(owner, count, prompt))?;
        let id = SlotId { owner, number };
        table.entry(id).running += 1;
        Some(SlotRecorder { slots: self.clone(), id, tokens: prompt.to_vec(), final_len })
    }

    /// The content of an idle slot; `None` if it is empty.
    pub(crate) fn content(&self, id: SlotId) -> Result<Option<SlotContent>, Busy> {
        match locked(&self.0).entries.get(&id) {
            Some(entry) if entry.running > 0 => Err(Busy),
            entry => Ok(entry.and_then(|entry| entry.content.clone())),
        }
    }

    /// Replaces the content of an idle slot. Returns its number of tokens before.
    pub(crate) fn replace(&self, id: SlotId, content: Option<SlotContent>) -> Result<usize, Busy> {
        let mut table = locked(&self.0);
        if table.entry(id).running > 0 {
            return Err(Busy);
        }
        Ok(table.set(id, content))
    }

    /// Whether a request runs in a slot.
    pub(crate) fn is_running(&self, id: SlotId) -> bool {
        locked(&self.0).entries.get(&id).is_some_and(|entry| entry.running > 0)
    }
}

impl Table {
    /// An entry, which counts as a use.
    fn entry(&mut self, id: SlotId) -> &mut Entry {
        self.uses += 1;
        let entry = self.entries.entry(id).or_insert(Entry { content: None, running: 0, used: 0 });
        entry.used = self.uses;
        entry
    }

    /// The slot of a request that names none.
    fn choose(&self, owner: u64, count: u32, prompt: &[Token]) -> Option<u32> {
        let first = SlotId { owner, number: 0 };
        let own = || self.entries.range(first..).take_while(|(id, _)| id.owner == owner);
        let idle = || own().filter(|(id, entry)| entry.running == 0 && id.number < count);
        let common = |entry: &Entry| {
            let tokens = entry.content.as_ref().map_or(&[][..], |content| &content.tokens);
            tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count()
        };
        let (common, _, similar) =
            idle().map(|(id, entry)| (common(entry), entry.used, id.number)).max().unwrap_or_default();
        if common > 0 && common * SIMILAR >= prompt.len() {
            return Some(similar);
        }
        let unused = (0..count).zip(own().map(|(id, _)| id.number).chain([count]));
        let unused = unused.filter(|(number, entry)| number < entry).map(|(number, _)| number).next();
        let oldest = || idle().min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.number);
        unused.or_else(oldest)
    }

    /// Replaces the content of a slot. Returns its number of tokens before.
    fn set(&mut self, id: SlotId, content: Option<SlotContent>) -> usize {
        let len = |content: &Option<SlotContent>| content.as_ref().map_or(0, |content| content.tokens.len());
        let Some(entry) = self.entries.get_mut(&id) else { return 0 };
        self.tokens += len(&content);
        let before = len(&std::mem::replace(&mut entry.content, content));
        self.tokens -= before;
        while self.tokens > MAX_TOKENS {
            let others = self
                .entries
                .iter_mut()
                .filter(|(other, entry)| **other != id && entry.running == 0 && entry.content.is_some());
            let Some((_, oldest)) = others.min_by_key(|(_, entry)| entry.used) else { break };
            self.tokens -= len(&oldest.content.take());
        }
        // Empty slots need no entry.
        let is_used = |entry: &Entry| entry.running > 0 || entry.content.is_some();
        self.entries.retain(|_, entry| is_used(entry));
        before
    }
}

/// Collects the tokens of a request that runs in a slot; the slot gets them when this is dropped.
#[derive(Debug)]
pub(crate) struct SlotRecorder {
    slots: Arc<Slots>,
    id: SlotId,
    tokens: Vec<Token>,
    final_len: u32,
}

impl SlotRecorder {
    /// The slot's number.
    pub(crate) fn number(&self) -> u32 {
        self.id.number
    }

    pub(crate) fn push(&mut self, token: Token) {
        self.tokens.push(token);
    }
}

impl Drop for SlotRecorder {
    fn drop(&mut self) {
        let content =
            SlotContent { tokens: std::mem::take(&mut self.tokens).into(), final_len: self.final_len };
        let mut table = locked(&self.slots.0);
        table.entry(self.id).running -= 1;
        table.set(self.id, Some(content));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(slots: &Arc<Slots>, requested: Option<u32>, prompt: &[Token]) -> Option<SlotRecorder> {
        slots.begin(1, requested, 3, prompt, 100)
    }

    fn tokens(slots: &Slots, number: u32) -> Result<Vec<Token>, Busy> {
        let content = slots.content(SlotId { owner: 1, number })?;
        Ok(content.map_or_else(Vec::new, |content| content.tokens.to_vec()))
    }

    #[test]
    fn slots_hold_prompt_and_answer_of_their_last_request() {
        let slots = Arc::new(Slots::default());
        let mut one = begin(&slots, Some(2), &[1, 2]).unwrap();
        one.push(3);
        assert_eq!((one.number(), tokens(&slots, 2)), (2, Err(Busy)));
        assert_eq!(slots.replace(SlotId { owner: 1, number: 2 }, None), Err(Busy));
        drop(one);
        assert_eq!(tokens(&slots, 2), Ok(vec![1, 2, 3]));
        assert_eq!(slots.content(SlotId { owner: 2, number: 2 }), Ok(None), "a key has its own slots");
        assert_eq!(slots.replace(SlotId { owner: 1, number: 2 }, None), Ok(3));
        assert_eq!(tokens(&slots, 2), Ok(vec![]));
    }

    #[test]
    fn requests_get_the_slot_that_fits_best() {
        let slots = Arc::new(Slots::default());
        let number = |prompt: &[Token]| begin(&slots, None, prompt).map(|slot| slot.number());
        assert_eq!(number(&[1, 2, 3]), Some(0));
        assert_eq!(number(&[4, 5, 6]), Some(1), "an unused slot");
        assert_eq!(number(&[1, 2, 9]), Some(0), "the longest common prefix");
        assert_eq!(number(&[7]), Some(2));
        assert_eq!(number(&[8]), Some(1), "the least recently used slot");
        let busy = [begin(&slots, None, &[8]), begin(&slots, None, &[8]), begin(&slots, None, &[8])];
        let mut numbers: Vec<u32> = busy.iter().flatten().map(SlotRecorder::number).collect();
        numbers.sort();
        assert_eq!((numbers, number(&[8])), (vec![0, 1, 2], None));
    }

    #[test]
    fn tokens_of_all_slots_are_bounded() {
        let slots = Arc::new(Slots::default());
        let half = vec![0; MAX_TOKENS / 2];
        for number in 0..3 {
            drop(slots.begin(1, Some(number), 3, &half, 100));
        }
        let lens: Vec<usize> = (0..3).map(|number| tokens(&slots, number).unwrap().len()).collect();
        assert_eq!(lens, [0, half.len(), half.len()]);
        assert_eq!(locked(&slots.0).tokens, MAX_TOKENS);
        for number in 0..3 {
            slots.replace(SlotId { owner: 1, number }, None).unwrap();
        }
        let table = locked(&slots.0);
        assert_eq!((table.tokens, table.entries.len()), (0, 0));
    }
}
