//! `table!`: concatenates groups of fields to one table at compile time.

use crate::request::field::{Field, yes};

/// Concatenates groups of fields, each a `&[Field]`.
macro_rules! table {
    ($($group:expr),+ $(,)?) => {{
        const GROUPS: &[&[$crate::request::field::Field]] = &[$($group),+];
        const ALL: [$crate::request::field::Field; $crate::request::fields::table::total(GROUPS)] = $crate::request::fields::table::joined(GROUPS);
        &ALL
    }};
}
pub(super) use table;

/// Number of fields of all groups.
pub(in crate::request::fields) const fn total(groups: &[&[Field]]) -> usize {
    let (mut n, mut group) = (0, 0);
    while group < groups.len() {
        n += groups[group].len();
        group += 1;
    }
    n
}

/// Concatenates the groups. `N` must be their [`total`].
pub(in crate::request::fields) const fn joined<const N: usize>(groups: &[&[Field]]) -> [Field; N] {
    let mut all = [yes(""); N];
    let (mut n, mut group) = (0, 0);
    while group < groups.len() {
        let mut i = 0;
        while i < groups[group].len() {
            all[n] = groups[group][i];
            (n, i) = (n + 1, i + 1);
        }
        group += 1;
    }
    all
}
