//! The suffix automaton and the n-gram index against a search of the whole sequence.

use super::ngram_index::NgramIndex;
use super::suffix_automaton::SuffixAutomaton;
use kvasir_testkit::Random;

/// Places where `what` ends in `text`.
fn ends(text: &[u32], what: &[u32]) -> Vec<usize> {
    (what.len()..=text.len()).filter(|end| text[end - what.len()..*end] == *what).collect()
}

/// The longest suffix that also ends before the end.
fn longest_repeated(text: &[u32]) -> usize {
    (0..text.len()).rev().find(|len| ends(text, &text[text.len() - len..]).len() > 1).unwrap_or(0)
}

fn text(random: &mut Random, len: u32, vocab: u32) -> Vec<u32> {
    (0..len).map(|_| random.between(0, vocab)).collect()
}

#[test]
fn the_longest_repeated_suffix_and_its_counts_are_found() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let vocab = random.between(1, 6);
        let text = text(&mut random, 60, vocab);
        let mut automaton = SuffixAutomaton::default();
        for end in 1..=text.len() {
            automaton.push(text[end - 1]);
            let so_far = &text[..end];
            let (state, len) = automaton.repeated_suffix();
            assert_eq!(len as usize, longest_repeated(so_far), "{so_far:?}");
            if len == 0 {
                continue;
            }
            let places = ends(so_far, &so_far[end - len as usize..]);
            let (token, _, share) = automaton.likeliest(state).unwrap();
            let follows = |token| places.iter().filter(|at| so_far.get(**at) == Some(&token)).count();
            let most = (0..=vocab).map(follows).max().unwrap();
            assert_eq!(follows(token), most, "{token} after {so_far:?}");
            assert!((share - most as f32 / places.len() as f32).abs() < 1e-6, "{so_far:?}");
        }
        assert_eq!(automaton.len(), 60);
    }
}

#[test]
fn a_context_is_followed_into_another_text() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (known, other) = (text(&mut random, 80, 4), text(&mut random, 40, 4));
        let mut automaton = SuffixAutomaton::default();
        known.iter().for_each(|token| automaton.push(*token));
        let (mut state, mut len) = (automaton.root(), 0);
        for end in 1..=other.len() {
            (state, len) = automaton.follow(state, len, other[end - 1]);
            let longest = (0..=end).rev().find(|len| !ends(&known, &other[end - len..end]).is_empty());
            assert_eq!(Some(len as usize), longest, "{known:?} {:?}", &other[..end]);
        }
    }
}

#[test]
fn reserved_memory_is_enough() {
    let mut automaton = SuffixAutomaton::default();
    automaton.reserve(4000);
    let before = format!("{automaton:?}").len();
    let mut random = Random::new(3);
    text(&mut random, 4000, 50).iter().for_each(|token| automaton.push(*token));
    assert!(format!("{automaton:?}").len() > before);
    assert_eq!(automaton.len(), 4000);
}

#[test]
fn the_newest_occurrence_of_an_ngram_is_continued() {
    let mut index = NgramIndex::new(2);
    [1, 2, 3, 4, 1, 2, 5, 6].iter().for_each(|token| index.push(*token));
    assert!(index.continuation().is_empty(), "5 6 is new");
    index.push(1);
    assert!(index.continuation().is_empty(), "6 1 is new");
    index.push(2);
    assert_eq!(index.continuation(), [5, 6, 1, 2]);
}
