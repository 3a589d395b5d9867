//! Groups the deltas of an answer into output items (reasoning, message, function call) for
//! item-based APIs.
//!
//! Invariant: only the last item grows; an item emits `Begin`, then `More`s, then exactly one
//! `End`. OpenAI's Responses API and Anthropic's Messages API stream items.

use crate::answer::events::Delta;

/// The kind of an output item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// Reasoning.
    Reasoning,
    /// Visible text.
    Text,
    /// A call of this function; the item's text is its arguments as JSON.
    Call(String),
}

/// An output item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its kind.
    pub kind: ItemKind,
    /// Its accumulated text.
    pub text: String,
}

/// A streaming event of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemEvent {
    /// The item begins; its predecessor has ended.
    Begin,
    /// The item grows by this text.
    More(String),
    /// The item has ended.
    End,
}

/// Accumulates the items of an answer; only the last one grows.
#[derive(Clone, Debug, Default)]
pub struct Items {
    items: Vec<Item>,
    open: bool,
}

impl Items {
    /// Feeds a delta; returns events with the index of their item.
    pub fn push(&mut self, delta: Delta) -> Vec<(usize, ItemEvent)> {
        let (kind, text, anew) = match delta {
            Delta::Content(text) => (ItemKind::Text, text, false),
            Delta::Reasoning(text) => (ItemKind::Reasoning, text, false),
            Delta::CallBegin { name, .. } => (ItemKind::Call(name), String::new(), true),
            Delta::CallArguments { text, .. } => match self.items.last() {
                Some(Item { kind: kind @ ItemKind::Call(_), .. }) => (kind.clone(), text, false),
                // Arguments always follow the start of their call.
                _ => return Vec::new(),
            },
        };
        let mut events = Vec::new();
        let same = self.open && !anew && self.items.last().is_some_and(|last| last.kind == kind);
        if !same {
            events.extend(self.finish());
            events.push((self.items.len(), ItemEvent::Begin));
            self.items.push(Item { kind, text: String::new() });
            self.open = true;
        }
        if let Some(last) = self.items.last_mut().filter(|_| !text.is_empty()) {
            last.text.push_str(&text);
            events.push((self.items.len() - 1, ItemEvent::More(text)));
        }
        events
    }

    /// Ends the last item, if it is still open.
    pub fn finish(&mut self) -> Option<(usize, ItemEvent)> {
        let last = self.items.len().checked_sub(1)?;
        std::mem::take(&mut self.open).then_some((last, ItemEvent::End))
    }

    /// All items so far.
    pub fn all(&self) -> &[Item] {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_follow_one_another_and_keep_their_text() {
        let mut items = Items::default();
        let content = |text: &str| Delta::Content(text.into());
        let arguments = |index, text: &str| Delta::CallArguments { index, text: text.into() };
        let begin = |index| Delta::CallBegin { index, name: "f".into() };
        let deltas = [
            Delta::Reasoning("hm".into()),
            content("a"),
            content("b"),
            begin(0),
            arguments(0, "{"),
            arguments(0, "}"),
            begin(1),
            arguments(1, "{}"),
            content("c"),
        ];
        let mut events: Vec<_> = deltas.into_iter().flat_map(|delta| items.push(delta)).collect();
        events.extend(items.finish());
        assert_eq!(items.finish(), None, "an item ends once");
        let texts: Vec<_> = items.all().iter().map(|item| item.text.as_str()).collect();
        assert_eq!(texts, ["hm", "ab", "{}", "{}", "c"]);
        for (index, text) in texts.iter().enumerate() {
            let own: Vec<_> = events.iter().filter(|(i, _)| *i == index).map(|(_, event)| event).collect();
            assert_eq!((own.first(), own.last()), (Some(&&ItemEvent::Begin), Some(&&ItemEvent::End)));
            let more = own.iter().filter_map(|event| match event {
                ItemEvent::More(text) => Some(text.as_str()),
                _ => None,
            });
            assert_eq!(&more.collect::<String>(), text);
        }
        assert!(events.is_sorted_by_key(|(index, _)| *index));
    }
}
