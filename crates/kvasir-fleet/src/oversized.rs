//! Reduces results that exceed the maximum message size: removes log-probabilities, scores and
//! hidden states, and fails the runs that had some.

use kvasir_engine::Outbox;
use std::collections::HashSet;

/// Removes all log-probabilities, scores and hidden states, clears the events that had some, and
/// removes the summaries of their requests. Returns the tags of these events, in order. The caller
/// must abort these runs.
pub(crate) fn remove_oversized(outbox: &mut Outbox) -> Vec<u64> {
    let Outbox { events, logprobs, scores, hidden, ended, .. } = outbox;
    let by_event: HashSet<u32> =
        scores.iter().map(|(at, _)| *at).chain(hidden.iter().map(|(at, _)| *at)).collect();
    let mut tags = Vec::new();
    let mut requests = HashSet::new();
    for (index, event) in events.iter_mut().enumerate() {
        let range = event.tokens.range();
        let first = logprobs.partition_point(|(token, _)| (*token as usize) < range.start);
        let has_logprobs = logprobs.get(first).is_some_and(|(token, _)| range.contains(&(*token as usize)));
        if has_logprobs || by_event.contains(&(index as u32)) {
            tags.push(event.tag);
            requests.insert(event.request);
            // The front drops events of tag 0.
            (event.tag, event.finish, event.tokens) = (0, None, Default::default());
        }
    }
    ended.retain(|summary| !requests.contains(&summary.request));
    logprobs.clear();
    scores.clear();
    hidden.clear();
    tags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_request::push_end;
    use kvasir_engine::{Event, Finish, RequestId, Timings};
    use kvasir_kv::Span;

    #[test]
    fn only_runs_with_large_results_are_removed() {
        let mut outbox = Outbox { tokens: vec![7, 8, 9], ..Outbox::default() };
        for (at, tag) in [(0, 21), (1, 22), (2, 23)] {
            let request = RequestId(tag);
            let tokens = Span::new(at, 1);
            outbox.events.push(Event { request, tag, step: None, first: 0, tokens, finish: None });
        }
        push_end((24, Finish::MaxTokens), (5, 0, 1), Timings::default(), &mut outbox);
        push_end((25, Finish::MaxTokens), (5, 0, 1), Timings::default(), &mut outbox);
        outbox.logprobs.push((1, Default::default()));
        outbox.hidden.push((3, vec![0.0; 9]));
        assert_eq!(remove_oversized(&mut outbox), [22, 24]);
        let left: Vec<u64> = outbox.events.iter().map(|event| event.tag).collect();
        assert_eq!(left, [21, 0, 23, 0, 25]);
        assert_eq!((outbox.ended.len(), outbox.ended[0].tag), (1, 25));
        assert!(outbox.logprobs.is_empty() && outbox.hidden.is_empty());
    }
}
