//! A worker: what one thread of the pool owns, handed to every job that it runs.
//!
//! Scratch memory is kept by type, so kernels keep theirs without the pool knowing them. It is made
//! on first use and lives as long as the pool.

use std::any::Any;

/// One thread of a pool, as its jobs see it.
pub(crate) struct Worker {
    /// Index of the thread; the caller's is 0.
    pub(crate) index: usize,
    scratch: Vec<Box<dyn Any + Send>>,
}

impl Worker {
    pub(crate) fn new(index: usize) -> Self {
        Self { index, scratch: Vec::new() }
    }

    /// The worker's scratch memory of type `T`.
    pub(crate) fn scratch<T: Any + Send + Default>(&mut self) -> &mut T {
        let at = self.place::<T>();
        let found = self.scratch[at].downcast_mut();
        found.unwrap_or_else(|| unreachable!("it was found by its type"))
    }

    /// Scratch memory of two types.
    pub(crate) fn scratches<A: Any + Send + Default, B: Any + Send + Default>(&mut self) -> (&mut A, &mut B) {
        let at = [self.place::<A>(), self.place::<B>()];
        let both = self.scratch.get_disjoint_mut(at).map(|[a, b]| (a.downcast_mut(), b.downcast_mut()));
        let Ok((Some(a), Some(b))) = both else {
            unreachable!("they were found by their types, which differ")
        };
        (a, b)
    }

    /// Index of the scratch of type `T`, which is made if there is none.
    fn place<T: Any + Send + Default>(&mut self) -> usize {
        self.scratch.iter().position(|scratch| scratch.is::<T>()).unwrap_or_else(|| {
            self.scratch.push(Box::<T>::default());
            self.scratch.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_kept_by_type() {
        let mut worker = Worker::new(0);
        worker.scratch::<Vec<u8>>().push(7);
        worker.scratch::<Vec<u32>>().push(1);
        let (bytes, words) = worker.scratches::<Vec<u8>, Vec<u32>>();
        assert_eq!((&bytes[..], &words[..]), (&[7][..], &[1][..]));
    }
}
