//! Admission test for `max_model_len`: whether every row's remaining tokens still fit if a new
//! prompt joins the padded decode batch.

use super::{Decoder, Newcomer};

/// Whether all remaining tokens fit `max_model_len` if the new prompt joins now (rule set
/// `document`). `tkv` is that of the previous step.
///
/// Joining aligns every row to the block of `base = floor(max(tkv, prompt) / block) * block`. Each
/// row, the new one included, must satisfy `base + computed % block + left <= max_model_len`.
pub fn length_allows(
    max_model_len: u32,
    block: u32,
    tkv: u32,
    new: Newcomer,
    mut decoders: impl Iterator<Item = Decoder>,
) -> bool {
    let block = block.max(1);
    let base = tkv.max(new.prompt) / block * block;
    let fits = |computed: u32, left: u32| {
        let at = u64::from(base) + u64::from(computed % block);
        at + u64::from(left) <= u64::from(max_model_len)
    };
    fits(new.prompt, new.left) && decoders.all(|d| fits(d.computed, d.left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newcomer_and_every_decoder_must_fit() {
        let new = Newcomer { prompt: 111, left: 16 };
        let one = |computed, left| std::iter::once(Decoder { computed, left });
        assert!(length_allows(128, 64, 111, new, std::iter::empty()));
        assert!(length_allows(127, 64, 111, new, std::iter::empty()));
        assert!(!length_allows(126, 64, 111, new, std::iter::empty()));
        // A decoder at offset 61 of the block it is pushed to has space for three more tokens.
        assert!(length_allows(128, 64, 61, new, one(61, 3)));
        assert!(!length_allows(128, 64, 61, new, one(61, 4)));
    }

    #[test]
    fn a_long_batch_pushes_a_short_newcomer() {
        let new = Newcomer { prompt: 10, left: 99 };
        assert!(length_allows(512, 64, 410, new, std::iter::empty()));
        assert!(!length_allows(512, 64, 450, new, std::iter::empty()), "448 + 10 + 99 > 512");
    }
}
