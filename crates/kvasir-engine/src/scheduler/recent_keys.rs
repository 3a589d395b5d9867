//! Client keys of recent admissions in a sliding window: tells whether several keys are active.

use std::collections::{BTreeMap, VecDeque};

/// Window size in admissions.
const WINDOW: usize = 1024;

/// The keys of the last [`WINDOW`] admissions.
#[derive(Debug, Default)]
pub(crate) struct RecentKeys {
    admissions: VecDeque<u64>,
    count: BTreeMap<u64, u32>,
}

impl RecentKeys {
    /// Records an admission.
    pub(crate) fn note(&mut self, key: u64) {
        self.admissions.push_back(key);
        *self.count.entry(key).or_default() += 1;
        if self.admissions.len() > WINDOW
            && let Some(old) = self.admissions.pop_front()
            && let Some(count) = self.count.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.count.remove(&old);
            }
        }
    }

    /// Whether the window holds more than one key.
    pub(crate) fn are_several(&self) -> bool {
        self.count.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_admissions_do_not_count() {
        let mut recent = RecentKeys::default();
        recent.note(1);
        (1..WINDOW).for_each(|_| recent.note(2));
        assert!(recent.are_several());
        recent.note(2);
        assert!(!recent.are_several());
    }
}
