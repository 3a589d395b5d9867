//! `LazyVec`: a list that is almost always empty, stored as one null pointer to keep hot structs
//! small.

use std::ops::{Deref, DerefMut};

/// A list that is almost always empty: one pointer, null until first used.
#[derive(Clone, Debug)]
#[allow(clippy::box_collection)] // a pointer, not three words
pub(crate) struct LazyVec<T>(Option<Box<Vec<T>>>);

impl<T> Default for LazyVec<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Deref for LazyVec<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], |list| list)
    }
}

impl<T> DerefMut for LazyVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.as_deref_mut().map_or(&mut [], |list| list)
    }
}

impl<T> LazyVec<T> {
    /// The list, mutable, allocated on first use.
    pub(crate) fn make(&mut self) -> &mut Vec<T> {
        self.0.get_or_insert_default()
    }

    /// Takes the whole list.
    pub(crate) fn take(&mut self) -> Vec<T> {
        self.0.take().map_or(Vec::new(), |list| *list)
    }

    /// Edits the list if it is allocated; frees it when it becomes empty.
    pub(crate) fn edit<R>(&mut self, edit: impl FnOnce(&mut Vec<T>) -> R) -> Option<R> {
        let result = edit(self.0.as_deref_mut()?);
        if self.is_empty() {
            self.0 = None;
        }
        Some(result)
    }
}
