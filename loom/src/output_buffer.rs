//! Models of the buffer between the engine's thread and the reader of an answer.

use crate::host::output_buffer::{Closed, OutputBuffer};
use loom::{future::block_on, sync::Arc, thread};
use std::{future::poll_fn, task::Waker};

pub(crate) const MODELS: &[(&str, fn())] = &[
    ("buffer: every_token_arrives_once_and_in_order", every_token_arrives_once_and_in_order),
    ("buffer: closing_wakes_a_reader_after_the_last_token", closing_wakes_a_reader_after_the_last_token),
];

/// Takes once; waits like a task of the server.
fn take(buffer: &OutputBuffer<Vec<u32>>, into: &mut Vec<u32>) -> Result<(), Closed> {
    into.clear();
    block_on(poll_fn(|context| buffer.poll_take(into, context)))
}

fn every_token_arrives_once_and_in_order() {
    let buffer = Arc::new(OutputBuffer::<Vec<u32>>::default());
    let writer = {
        let buffer = buffer.clone();
        thread::spawn(move || {
            (0..3).filter_map(|token| buffer.put(|tokens| tokens.push(token))).for_each(Waker::wake);
        })
    };
    let (mut all, mut some) = (Vec::new(), Vec::new());
    while all.len() < 3 {
        assert_eq!(take(&buffer, &mut some), Ok(()));
        assert!(!some.is_empty());
        all.append(&mut some);
    }
    assert_eq!(all, [0, 1, 2]);
    writer.join().unwrap();
}

/// Wakers run after the last change, as they do at the end of a step.
fn closing_wakes_a_reader_after_the_last_token() {
    let buffer = Arc::new(OutputBuffer::<Vec<u32>>::default());
    let writer = {
        let buffer = buffer.clone();
        thread::spawn(move || {
            let first = buffer.put(|tokens| tokens.push(7));
            let second = buffer.close();
            first.into_iter().chain(second).for_each(Waker::wake);
        })
    };
    let mut some = Vec::new();
    assert_eq!(take(&buffer, &mut some), Ok(()));
    assert_eq!(some, [7]);
    assert_eq!(take(&buffer, &mut some), Err(Closed));
    assert_eq!(take(&buffer, &mut some), Err(Closed));
    writer.join().unwrap();
}
