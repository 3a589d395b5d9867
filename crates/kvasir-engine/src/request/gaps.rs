//! [`Gaps`]: which positions of a sequence have no K/V any more, because a range was cut out of its
//! session.
//!
//! Tokens that follow a cut keep their positions. So the tokens of a sequence are consecutive, and its
//! positions are not:
//!
//! `position of token i = i + sum of the lengths of all gaps at or before i`

/// One run of missing positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    /// Tokens before it.
    at: u32,
    /// Positions.
    len: u32,
}

/// The missing positions of a sequence, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps(Vec<Gap>);

impl Gaps {
    /// Positions missing before the end of the first `tokens` tokens.
    pub(crate) fn before(&self, tokens: u32) -> u32 {
        self.0.iter().take_while(|gap| gap.at < tokens).map(|gap| gap.len).sum()
    }

    /// Position after the first `tokens` tokens.
    pub(crate) fn position(&self, tokens: u32) -> u32 {
        tokens + self.before(tokens)
    }

    /// The most tokens, at most `tokens`, that end before the first gap.
    pub(crate) fn without(&self, tokens: u32) -> u32 {
        self.0.first().map_or(tokens, |gap| gap.at.min(tokens))
    }

    /// The most tokens, at most `tokens`, after which a block of `block` positions ends.
    pub(crate) fn whole_blocks(&self, mut tokens: u32, block: u32) -> u32 {
        loop {
            let over = self.position(tokens) % block;
            if over == 0 {
                return tokens;
            }
            let run = self.0.iter().map(|gap| gap.at).take_while(|at| *at < tokens).last();
            tokens = tokens.saturating_sub(over).max(run.unwrap_or(0));
        }
    }

    /// Drops all gaps behind the first `tokens` tokens.
    pub(crate) fn truncate(&mut self, tokens: u32) {
        self.0.retain(|gap| gap.at < tokens);
    }

    /// Removes the tokens from `from` to `to`, behind which there are others. Returns their positions.
    pub(crate) fn cut(&mut self, from: u32, to: u32) -> std::ops::Range<u32> {
        let positions = self.position(from)..self.position(to);
        let inside = self.0.iter().filter(|gap| (from..=to).contains(&gap.at)).map(|gap| gap.len);
        let cut = Gap { at: from, len: to - from + inside.sum::<u32>() };
        self.0.retain(|gap| !(from..=to).contains(&gap.at));
        self.0.iter_mut().filter(|gap| gap.at > to).for_each(|gap| gap.at -= to - from);
        let place = self.0.partition_point(|gap| gap.at < from);
        self.0.insert(place, cut);
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_testkit::Random;

    /// The positions of all tokens, and what `Gaps` says of them, after random cuts.
    #[test]
    fn positions_are_those_of_the_tokens_that_are_left() {
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let mut kept: Vec<u32> = (0..60).collect();
            let mut gaps = Gaps::default();
            for _ in 0..random.below(6) {
                if kept.len() < 3 {
                    break;
                }
                let from = random.below(kept.len() as u64 - 1) as u32;
                let to = random.between(from + 1, kept.len() as u32);
                if to as usize == kept.len() {
                    continue;
                }
                let before = kept.clone();
                let removed = gaps.cut(from, to);
                let cut: Vec<u32> = kept.drain(from as usize..to as usize).collect();
                assert!(cut.iter().all(|position| removed.contains(position)), "seed {seed}");
                assert!(before.iter().filter(|position| removed.contains(position)).count() == cut.len());
                if random.below(3) == 0 {
                    kept.truncate(random.between(1, kept.len() as u32) as usize);
                    gaps.truncate(kept.len() as u32);
                }
            }
            let end = |tokens: u32| if tokens == 0 { 0 } else { kept[tokens as usize - 1] + 1 };
            for tokens in 0..=kept.len() as u32 {
                assert_eq!(gaps.position(tokens), end(tokens), "seed {seed}: {gaps:?}");
                let whole = (0..=tokens).rev().find(|tokens| end(*tokens) % 4 == 0);
                assert_eq!(Some(gaps.whole_blocks(tokens, 4)), whole, "seed {seed}: {gaps:?}");
                let run = (0..=tokens).rev().find(|tokens| end(*tokens) == *tokens);
                assert_eq!(Some(gaps.without(tokens)), run, "seed {seed}: {gaps:?}");
            }
        }
    }
}
