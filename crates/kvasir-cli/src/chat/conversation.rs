//! Conversation state of `kvasir chat`: messages in API format, with branches, fork and rewind.

use crate::chat::statistics::plural;
use kvasir_sample::Sampling;
use kvasir_serve::request::{ChatRequest, IgnoredFields, Reader};
use serde_json::{Map, Value, json};

/// Messages in chronological order, in API format.
#[derive(Clone, Default)]
struct Branch {
    messages: Vec<Value>,
    /// After each answer: number of messages, and tokens of its prompt and itself.
    contexts: Vec<(usize, u32)>,
}

impl Branch {
    fn truncate(&mut self, len: usize) {
        self.messages.truncate(len);
        self.contexts.retain(|(messages, _)| *messages <= len);
    }
}

/// A conversation with branches. Each branch holds all its messages; their K/V is shared in the
/// engine's prefix cache.
pub(crate) struct Conversation {
    branches: Vec<Branch>,
    here: usize,
}

/// A user message.
pub(crate) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn role(message: &Value) -> &str {
    message["role"].as_str().unwrap_or_default()
}

impl Conversation {
    /// An empty conversation, with an optional system prompt.
    pub(super) fn new(system: Option<&str>) -> Self {
        let mut conversation = Self { branches: vec![Branch::default()], here: 0 };
        conversation.set_system(system.unwrap_or_default());
        conversation
    }

    /// Messages of the current branch.
    pub(super) fn messages(&self) -> &[Value] {
        self.branches.get(self.here).map_or(&[], |branch| branch.messages.as_slice())
    }

    fn branch(&mut self) -> &mut Branch {
        if self.branches.is_empty() {
            self.branches.push(Branch::default());
        }
        let here = self.here.min(self.branches.len() - 1);
        &mut self.branches[here]
    }

    /// Appends a message.
    pub(super) fn push(&mut self, message: Value) {
        self.branch().messages.push(message);
    }

    /// Truncates the branch to `len` messages.
    pub(super) fn truncate(&mut self, len: usize) {
        self.branch().truncate(len);
    }

    /// The system prompt.
    pub(super) fn system(&self) -> Option<&str> {
        self.messages().first().filter(|first| role(first) == "system")?["content"].as_str()
    }

    /// Sets the system prompt of this branch; an empty text removes it.
    pub(super) fn set_system(&mut self, text: &str) {
        let had = self.system().is_some();
        let branch = self.branch();
        branch.messages.drain(..usize::from(had));
        // Every prompt changes.
        branch.contexts.clear();
        if !text.is_empty() {
            branch.messages.insert(0, json!({"role": "system", "content": text}));
        }
    }

    /// Notes the tokens of the last prompt and its answer, which is the last message.
    pub(super) fn set_context(&mut self, tokens: u32) {
        let branch = self.branch();
        branch.contexts.push((branch.messages.len(), tokens));
    }

    /// Tokens of the branch up to its last answer; `None` if that was stopped, loaded, or given by
    /// another model or under another system prompt.
    pub(super) fn context(&self) -> Option<u32> {
        if self.len() == 0 {
            return Some(0);
        }
        let branch = self.branches.get(self.here)?;
        let last = branch.contexts.last().filter(|(messages, _)| *messages == branch.messages.len());
        last.map(|(_, tokens)| *tokens)
    }

    /// Forgets the tokens of all branches, because another model counts others.
    pub(super) fn forget_contexts(&mut self) {
        self.branches.iter_mut().for_each(|branch| branch.contexts.clear());
    }

    /// Number of messages without the system prompt.
    pub(super) fn len(&self) -> usize {
        self.messages().len() - usize::from(self.system().is_some())
    }

    /// Forks the branch before its last `back` questions and switches to the copy. Returns the
    /// copy's number.
    pub(super) fn fork(&mut self, back: usize) -> Result<usize, String> {
        let len = self.before(back)?;
        let mut copy = self.branch().clone();
        copy.truncate(len);
        self.branches.push(copy);
        self.here = self.branches.len() - 1;
        Ok(self.branches.len())
    }

    /// Removes all messages of the branch but the system prompt; returns their number.
    pub(super) fn clear(&mut self) -> usize {
        let (removed, kept) = (self.len(), usize::from(self.system().is_some()));
        self.truncate(kept);
        removed
    }

    /// Begins an empty branch with the same system prompt and switches to it. Returns its number.
    pub(super) fn begin(&mut self) -> usize {
        let system = self.system().map(str::to_owned);
        self.branches.push(Branch::default());
        self.here = self.branches.len() - 1;
        self.set_system(system.as_deref().unwrap_or_default());
        self.branches.len()
    }

    /// Places of the questions.
    fn questions(&self) -> Vec<usize> {
        let messages = self.messages();
        (0..messages.len()).filter(|at| role(&messages[*at]) == "user").collect()
    }

    /// Number of turns: questions, each with all that follows up to the next one.
    pub(super) fn turns(&self) -> usize {
        self.questions().len()
    }

    /// The messages without the oldest `turns` turns.
    pub(super) fn without_oldest(&self, turns: usize) -> Vec<Value> {
        let messages = self.messages();
        let kept = usize::from(self.system().is_some());
        let from = match turns {
            0 => kept,
            _ => self.questions().get(turns).copied().unwrap_or(messages.len()),
        };
        messages[..kept].iter().chain(&messages[from..]).cloned().collect()
    }

    /// Removes the oldest `turns` turns; returns their number of messages.
    pub(super) fn drop_oldest(&mut self, turns: usize) -> usize {
        let (left, before) = (self.without_oldest(turns), self.messages().len());
        let removed = before - left.len();
        *self.branch() = Branch { messages: left, contexts: Vec::new() };
        removed
    }

    /// Switches to a branch by number, counted from 1.
    pub(super) fn switch(&mut self, number: usize) -> Result<(), String> {
        match number.checked_sub(1).filter(|at| *at < self.branches.len()) {
            Some(at) => {
                self.here = at;
                Ok(())
            }
            None => Err(format!("there is no branch {number}; there are {}", self.branches.len())),
        }
    }

    /// Removes the last `turns` questions and all that followed; returns the earliest one.
    /// Unchanged on error.
    pub(super) fn rewind(&mut self, turns: usize) -> Result<String, String> {
        let len = self.before(turns)?;
        let first = self.messages().get(len).and_then(|message| message["content"].as_str());
        let first = first.unwrap_or_default().to_owned();
        self.truncate(len);
        Ok(first)
    }

    /// Number of messages before the last `turns` questions.
    fn before(&self, turns: usize) -> Result<usize, String> {
        let (messages, questions) = (self.messages(), self.questions());
        match questions.len().checked_sub(turns) {
            Some(left) => Ok(questions.get(left).copied().unwrap_or(messages.len())),
            None if questions.is_empty() => Err("nothing has been asked yet".into()),
            None => Err(format!("only {} came so far", plural(questions.len() as u64, "question"))),
        }
    }

    /// Current branch number, and per branch its number of questions and the last one.
    pub(super) fn overview(&self) -> (usize, Vec<(usize, String)>) {
        let line = |branch: &Branch| {
            let questions: Vec<&Value> =
                branch.messages.iter().filter(|message| role(message) == "user").collect();
            let last = questions.last().and_then(|message| message["content"].as_str()).unwrap_or_default();
            (questions.len(), last.lines().next().unwrap_or_default().to_owned())
        };
        (self.here + 1, self.branches.iter().map(line).collect())
    }

    /// The branch as a JSON file, which is also a valid request body.
    pub(super) fn to_json(&self) -> Value {
        json!({"messages": self.messages()})
    }

    /// Replaces the branch by a file's messages, if they form a valid request. Unchanged on error.
    pub(super) fn load(&mut self, text: &str) -> Result<(), String> {
        let value: Value = serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))?;
        let messages = value.get("messages").and_then(Value::as_array).ok_or("holds no list `messages`")?;
        let only = Map::from_iter([("messages".to_owned(), Value::from(messages.clone()))]);
        let ignored = IgnoredFields::default();
        let reader = Reader::new(&only, &ignored);
        ChatRequest::read(&reader, &Sampling::default(), u32::MAX).map_err(|error| error.message)?;
        *self.branch() = Branch { messages: messages.clone(), contexts: Vec::new() };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talked() -> Conversation {
        let mut talk = Conversation::new(Some("Be brief."));
        for (question, answer) in [("one?", "1"), ("two?", "2"), ("three?", "3")] {
            talk.push(user(question));
            talk.push(json!({"role": "assistant", "content": answer}));
        }
        talk
    }

    #[test]
    fn rewind_returns_the_earliest_removed_question() {
        let mut talk = talked();
        assert_eq!(talk.rewind(2), Ok("two?".into()));
        assert_eq!((talk.len(), talk.system()), (2, Some("Be brief.")));
        assert!(talk.rewind(2).is_err());
        assert_eq!(talk.len(), 2, "a refused rewind changes nothing");
    }

    #[test]
    fn the_oldest_turns_are_dropped_and_the_instructions_stay() {
        let mut talk = talked();
        let question = |messages: &[Value]| messages[1]["content"].as_str().unwrap().to_owned();
        assert_eq!((talk.turns(), talk.without_oldest(0).len()), (3, 7));
        assert_eq!(question(&talk.without_oldest(2)), "three?");
        assert_eq!((talk.drop_oldest(1), talk.len(), talk.system()), (2, 4, Some("Be brief.")));
        assert_eq!((question(talk.messages()), talk.context()), ("two?".into(), None));
        assert_eq!((talk.drop_oldest(9), talk.len()), (4, 0));
    }

    #[test]
    fn a_new_conversation_keeps_the_old_one_and_a_cleared_one_does_not() {
        let mut talk = talked();
        assert_eq!((talk.begin(), talk.len(), talk.system()), (2, 0, Some("Be brief.")));
        talk.switch(1).unwrap();
        assert_eq!(
            (talk.clear(), talk.len(), talk.system(), talk.context()),
            (6, 0, Some("Be brief."), Some(0))
        );
    }

    #[test]
    fn branches_do_not_see_each_other() {
        let mut talk = talked();
        assert_eq!(talk.fork(1), Ok(2));
        assert_eq!(talk.len(), 4);
        talk.push(user("else?"));
        talk.set_system("");
        talk.switch(1).unwrap();
        assert_eq!((talk.len(), talk.system()), (6, Some("Be brief.")));
        assert_eq!(talk.overview(), (1, vec![(3, "three?".into()), (3, "else?".into())]));
        assert!(talk.switch(3).is_err() && talk.switch(0).is_err() && talk.fork(9).is_err());
    }

    #[test]
    fn the_context_is_that_of_the_branch() {
        let mut talk = Conversation::new(Some("Be brief."));
        assert_eq!(talk.context(), Some(0));
        for (question, tokens) in [("one?", 10), ("two?", 20)] {
            talk.push(user(question));
            talk.push(json!({"role": "assistant", "content": "1"}));
            talk.set_context(tokens);
        }
        talk.fork(1).unwrap();
        assert_eq!(talk.context(), Some(10));
        talk.switch(1).unwrap();
        assert_eq!(talk.context(), Some(20));
        talk.rewind(1).unwrap();
        assert_eq!(talk.context(), Some(10));
        talk.rewind(1).unwrap();
        assert_eq!(talk.context(), Some(0));
        talk.load(r#"{"messages": [{"role": "user", "content": "x"}]}"#).unwrap();
        assert_eq!(talk.context(), None, "nothing has counted these messages");
        talk.switch(2).unwrap();
        talk.forget_contexts();
        assert_eq!(talk.context(), None);
    }

    #[test]
    fn saved_chats_load_and_invalid_ones_are_refused() {
        let talk = talked();
        let mut other = Conversation::new(None);
        other.load(&talk.to_json().to_string()).unwrap();
        assert_eq!(other.messages(), talk.messages());
        for bad in
            ["", "[]", "{}", r#"{"messages": []}"#, r#"{"messages": [{"role": "king", "content": "x"}]}"#]
        {
            assert!(other.load(bad).is_err(), "{bad}");
        }
        assert_eq!(other.messages(), talk.messages());
    }
}
