use super::Delta;

/// What a part of an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// What the model thinks to itself.
    Reasoning,
    /// What it says.
    Text,
    /// A call of this function; the item's text is its arguments.
    Call(String),
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub kind: ItemKind,
    /// All of its text so far.
    pub text: String,
}

/// What happens to an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemEvent {
    /// It begins; the one before it has ended.
    Begin,
    /// It gains this text.
    More(String),
    /// It has ended.
    End,
}

/// An answer as a list of parts, of which only the last one grows.
#[derive(Clone, Debug, Default)]
pub struct Items {
    items: Vec<Item>,
    open: bool,
}

impl Items {
    /// Takes what the answer gained; says what happened to which item.
    pub fn push(&mut self, delta: Delta) -> Vec<(usize, ItemEvent)> {
        let (kind, text, anew) = match delta {
            Delta::Content(text) => (ItemKind::Text, text, false),
            Delta::Reasoning(text) => (ItemKind::Reasoning, text, false),
            Delta::CallBegin { name, .. } => (ItemKind::Call(name), String::new(), true),
            Delta::CallArguments { text, .. } => match self.items.last() {
                Some(Item { kind: kind @ ItemKind::Call(_), .. }) => (kind.clone(), text, false),
                // Arguments follow the beginning of their call, always.
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

    /// Ends the last item.
    pub fn finish(&mut self) -> Option<(usize, ItemEvent)> {
        let last = self.items.len().checked_sub(1)?;
        std::mem::take(&mut self.open).then_some((last, ItemEvent::End))
    }

    /// The items so far.
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
