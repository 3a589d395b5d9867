//! llama.cpp's slots: numbered concurrent requests of an API key, each with the tokens of its last
//! request.
//!
//! Slots own no K/V: the prefix cache finds K/V by tokens. They are recorded only if they can be
//! saved to files. A request that names no slot gets the idle slot with the longest common prefix,
//! else an unused slot, else the least recently used idle slot.

use crate::host::lock::{Mutex, locked};
use kvasir_kv::Token;
use std::{collections::BTreeMap, sync::Arc};

/// Maximum tokens of all slots. Beyond it, the least recently used idle slots are emptied.
const MAX_TOKENS: usize = 1 << 24;
/// A slot is chosen by its prefix if that covers at least `1 / SIMILARITY_DIVISOR` of the prompt,
/// as llama.cpp's `--slot-prompt-similarity` has it.
const SIMILARITY_DIVISOR: usize = 10;

/// Content of a slot: its last request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotContent {
    /// Tokens of prompt and answer.
    pub(crate) tokens: Arc<[Token]>,
    /// Maximum length of the request, prompt and answer.
    pub(crate) final_len: u32,
}

/// A slot: an API key, and a number among the key's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId {
    pub(crate) owner: u64,
    pub(crate) number: u32,
}

#[derive(Debug)]
struct SlotEntry {
    content: Option<SlotContent>,
    /// Number of requests that run in the slot.
    running: u32,
    /// Value of [`SlotTable::uses`] at the last use.
    last_used: u64,
}

/// The slots of all keys.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<SlotTable>);

#[derive(Debug, Default)]
struct SlotTable {
    entries: BTreeMap<SlotId, SlotEntry>,
    /// Number of uses of any slot.
    uses: u64,
    /// Tokens of all slots.
    tokens: usize,
}

/// Error: a request is running in the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotBusy;

impl Slots {
    /// Assigns a request to a slot of the key `owner`, which has `count` slots. `None` if no slot
    /// is requested and none is idle.
    pub(crate) fn assign(
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
    pub(crate) fn content(&self, id: SlotId) -> Result<Option<SlotContent>, SlotBusy> {
        match locked(&self.0).entries.get(&id) {
            Some(entry) if entry.running > 0 => Err(SlotBusy),
            entry => Ok(entry.and_then(|entry| entry.content.clone())),
        }
    }

    /// Replaces the content of an idle slot. Returns the number of tokens that it held.
    pub(crate) fn replace(&self, id: SlotId, content: Option<SlotContent>) -> Result<usize, SlotBusy> {
        let mut table = locked(&self.0);
        if table.entry(id).running > 0 {
            return Err(SlotBusy);
        }
        Ok(table.set(id, content))
    }

    /// Whether a request runs in a slot.
    pub(crate) fn is_running(&self, id: SlotId) -> bool {
        locked(&self.0).entries.get(&id).is_some_and(|entry| entry.running > 0)
    }
}

impl SlotTable {
    /// The entry of a slot, created if needed. Counts as a use.
    fn entry(&mut self, id: SlotId) -> &mut SlotEntry {
        self.uses += 1;
        let entry = self.entries.entry(id).or_insert(SlotEntry { content: None, running: 0, last_used: 0 });
        entry.last_used = self.uses;
        entry
    }

    /// Chooses the slot of a request that names none. `None` if none is idle.
    fn choose(&self, owner: u64, count: u32, prompt: &[Token]) -> Option<u32> {
        let first = SlotId { owner, number: 0 };
        let own = || self.entries.range(first..).take_while(|(id, _)| id.owner == owner);
        let idle = || own().filter(|(id, entry)| entry.running == 0 && id.number < count);
        let common = |entry: &SlotEntry| {
            let tokens = entry.content.as_ref().map_or(&[][..], |content| &content.tokens);
            tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count()
        };
        let (common, _, similar) =
            idle().map(|(id, entry)| (common(entry), entry.last_used, id.number)).max().unwrap_or_default();
        if common > 0 && common * SIMILARITY_DIVISOR >= prompt.len() {
            return Some(similar);
        }
        let unused = (0..count).zip(own().map(|(id, _)| id.number).chain([count]));
        let unused = unused.filter(|(number, entry)| number < entry).map(|(number, _)| number).next();
        let oldest = || idle().min_by_key(|(_, entry)| entry.last_used).map(|(id, _)| id.number);
        unused.or_else(oldest)
    }

    /// Replaces the content of a slot. Returns the number of tokens that it held.
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
            let Some((_, oldest)) = others.min_by_key(|(_, entry)| entry.last_used) else { break };
            self.tokens -= len(&oldest.content.take());
        }
        // Empty slots need no entry.
        let is_used = |entry: &SlotEntry| entry.running > 0 || entry.content.is_some();
        self.entries.retain(|_, entry| is_used(entry));
        before
    }
}

/// Collects the tokens of a request that runs in a slot, and moves them to the slot on drop.
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

    /// Appends a token of the answer.
    pub(crate) fn push_token(&mut self, token: Token) {
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

    fn assign(slots: &Arc<Slots>, requested: Option<u32>, prompt: &[Token]) -> Option<SlotRecorder> {
        slots.assign(1, requested, 3, prompt, 100)
    }

    fn tokens(slots: &Slots, number: u32) -> Result<Vec<Token>, SlotBusy> {
        let content = slots.content(SlotId { owner: 1, number })?;
        Ok(content.map_or_else(Vec::new, |content| content.tokens.to_vec()))
    }

    #[test]
    fn slots_hold_prompt_and_answer_of_their_last_request() {
        let slots = Arc::new(Slots::default());
        let mut one = assign(&slots, Some(2), &[1, 2]).unwrap();
        one.push_token(3);
        assert_eq!((one.number(), tokens(&slots, 2)), (2, Err(SlotBusy)));
        assert_eq!(slots.replace(SlotId { owner: 1, number: 2 }, None), Err(SlotBusy));
        drop(one);
        assert_eq!(tokens(&slots, 2), Ok(vec![1, 2, 3]));
        assert_eq!(slots.content(SlotId { owner: 2, number: 2 }), Ok(None), "a key has its own slots");
        assert_eq!(slots.replace(SlotId { owner: 1, number: 2 }, None), Ok(3));
        assert_eq!(tokens(&slots, 2), Ok(vec![]));
    }

    #[test]
    fn requests_get_the_slot_with_the_longest_prefix() {
        let slots = Arc::new(Slots::default());
        let number = |prompt: &[Token]| assign(&slots, None, prompt).map(|slot| slot.number());
        assert_eq!(number(&[1, 2, 3]), Some(0));
        assert_eq!(number(&[4, 5, 6]), Some(1), "an unused slot");
        assert_eq!(number(&[1, 2, 9]), Some(0), "the longest common prefix");
        assert_eq!(number(&[7]), Some(2));
        assert_eq!(number(&[8]), Some(1), "the least recently used slot");
        let busy = [assign(&slots, None, &[8]), assign(&slots, None, &[8]), assign(&slots, None, &[8])];
        let mut numbers: Vec<u32> = busy.iter().flatten().map(SlotRecorder::number).collect();
        numbers.sort();
        assert_eq!((numbers, number(&[8])), (vec![0, 1, 2], None));
    }

    #[test]
    fn tokens_of_all_slots_are_bounded() {
        let slots = Arc::new(Slots::default());
        let half = vec![0; MAX_TOKENS / 2];
        for number in 0..3 {
            drop(slots.assign(1, Some(number), 3, &half, 100));
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
