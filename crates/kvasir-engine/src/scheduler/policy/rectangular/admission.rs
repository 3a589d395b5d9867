//! Admission tests of the decode batch: whether no later step exceeds the volume limit or
//! `max_model_len` if a prompt joins.
//!
//! - Volume: for a new row and decoding rows sorted by end, every step must satisfy
//!   `rows * max(tkv) <= limit`. It suffices to check at each row's projected end up to the new
//!   row's own.
//! - Length: joining aligns every row to a common block, and each row's remaining tokens must still
//!   fit.

use crate::scheduler::record::Projection;

/// A decoding row, as seen by the admission tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodingRow {
    /// Tokens with K/V.
    pub computed: u32,
    /// Outputs left, which is the number of decode steps left.
    pub left: u32,
}

/// A prompt about to join the decode batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewRow {
    /// Prompt tokens.
    pub prompt: u32,
    /// Outputs left after prefill, excluding the first: its decode steps.
    pub left: u32,
}

impl Projection {
    /// Projects the end lengths for a new row, reusing memory. `tkv` is that of the previous step.
    pub fn project(
        &mut self,
        block: u32,
        tkv: u32,
        new: NewRow,
        decoders: impl Iterator<Item = DecodingRow>,
    ) {
        let block = u64::from(block.max(1));
        let end = |at: u64, left: u32| (at + u64::from(left)).div_ceil(block) * block + block;
        let top = u64::from(tkv.max(new.prompt));
        self.own_end = end(top / block * block + u64::from(new.prompt) % block, new.left);
        self.ends.clear();
        self.ends.extend(decoders.map(|d| end(top, d.left)));
        self.ends.sort_unstable();
    }

    /// Tests that rows times the largest tkv stays within `limit` in every future step; otherwise
    /// returns the exceeding volume.
    ///
    /// A row that is projected to end sooner makes the batch smaller for the rest. States after the
    /// new row's own end were tested when the other rows were admitted.
    pub fn within(&self, limit: u64) -> Result<(), u64> {
        let mut rows = self.ends.len() as u64 + 1;
        for &theirs in &self.ends {
            let volume = rows * self.own_end.min(theirs);
            if volume > limit {
                return Err(volume);
            }
            if self.own_end <= theirs {
                break;
            }
            rows -= 1;
        }
        Ok(())
    }
}

/// Whether all remaining tokens fit `max_model_len` if the new prompt joins now (rule set
/// `document`). `tkv` is that of the previous step.
///
/// Joining aligns every row to the block of `base = floor(max(tkv, prompt) / block) * block`. Each
/// row, the new one included, must satisfy `base + computed % block + left <= max_model_len`.
pub fn length_allows(
    max_model_len: u32,
    block: u32,
    tkv: u32,
    new: NewRow,
    mut decoders: impl Iterator<Item = DecodingRow>,
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

    fn allows(limit: u64, tkv: u32, new: (u32, u32), decoders: &[(u32, u32)]) -> bool {
        // Test notation: `new` is (prompt, total outputs), each decoder (computed, outputs
        // including the pending one).
        let new = NewRow { prompt: new.0, left: new.1 - 1 };
        let decoders = decoders.iter().map(|&(computed, left)| DecodingRow { computed, left: left - 1 });
        let mut projection = Projection::default();
        projection.project(64, tkv, new, decoders);
        projection.within(limit).is_ok()
    }

    #[test]
    fn single_row_always_fits() {
        assert!(allows(1, 0, (1000, 1000), &[]));
    }

    #[test]
    fn volume_is_tested_up_to_the_new_rows_end() {
        // The new row ends at up(20 + 9) + 64 = 128, the other at up(40 + 59) + 64 = 192.
        assert!(allows(256, 40, (20, 10), &[(40, 60)]));
        assert!(!allows(255, 40, (20, 10), &[(40, 60)]));
    }

    #[test]
    fn volume_is_tested_at_every_earlier_end() {
        // The others end at 192 and 256, the new row at 576: 3 * 192 and 2 * 256 must fit.
        let others = [(60, 40), (60, 130)];
        assert!(allows(576, 60, (20, 500), &others));
        assert!(!allows(575, 60, (20, 500), &others));
        assert!(!allows(511, 60, (20, 500), &others[1..]));
        assert!(allows(512, 60, (20, 500), &others[1..]));
    }

    #[test]
    fn fourth_request_of_the_figure_waits_for_volume() {
        // Step 35 of the document's figure: 4 * 512 > 1536; with one decoder fewer it fits.
        let decoding = [(71, 78), (411, 98), (270, 29)];
        assert!(!allows(1536, 412, (105, 15), &decoding));
        assert!(allows(1536, 423, (105, 15), &[(82, 67), (281, 18)]));
    }

    #[test]
    fn length_test_covers_new_and_decoding_rows() {
        let new = NewRow { prompt: 111, left: 16 };
        let one = |computed, left| std::iter::once(DecodingRow { computed, left });
        assert!(length_allows(128, 64, 111, new, std::iter::empty()));
        assert!(length_allows(127, 64, 111, new, std::iter::empty()));
        assert!(!length_allows(126, 64, 111, new, std::iter::empty()));
        // A decoder at offset 61 of the block it is pushed to has space for three more tokens.
        assert!(length_allows(128, 64, 61, new, one(61, 3)));
        assert!(!length_allows(128, 64, 61, new, one(61, 4)));
    }

    #[test]
    fn long_batch_pads_a_short_new_row() {
        let new = NewRow { prompt: 10, left: 99 };
        assert!(length_allows(512, 64, 410, new, std::iter::empty()));
        assert!(!length_allows(512, 64, 450, new, std::iter::empty()), "448 + 10 + 99 > 512");
    }
}
