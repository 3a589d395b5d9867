//! Models of the ranks' shared memory: collectives, the broadcast ring, and the loss of a rank.

use crate::ranks::contributions::Contributions;
use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::layout::Layout;
use crate::ranks::memory::SharedMemory;
use crate::ranks::endpoint::Endpoint;
use crate::ranks::ring_error::RingError;
use loom::thread;

pub(crate) const MODELS: &[(&str, fn())] = &[
    ("ranks: all_reduce_is_equal_on_both_ranks", all_reduce_is_equal_on_both_ranks),
    ("ranks: an_aborted_step_keeps_ranks_in_step", an_aborted_step_keeps_ranks_in_step),
    ("ranks: records_arrive_once_and_in_order", records_arrive_once_and_in_order),
    ("ranks: a_lost_rank_fails_every_wait", a_lost_rank_fails_every_wait),
];

/// Two ranks, with rings of eight words and chunks of one word.
fn endpoints() -> [Endpoint; 2] {
    let layout = Layout { ranks: 2, ring_words: 8, chunk_words: 1 };
    let memory = SharedMemory::new(layout);
    [0, 1].map(|rank| Endpoint::new(memory.clone(), layout, rank))
}

/// Three chunks, so that the first chunk buffer is overwritten.
fn all_reduce_is_equal_on_both_ranks() {
    let sum = |endpoint: Endpoint| {
        let (contributions, rank) = (Contributions::new(), endpoint.rank as f32);
        contributions.begin_step();
        let mut rows = [1.0 + rank, 2.0 + rank, 3.0 + rank];
        contributions.all_reduce(&endpoint, &mut rows).unwrap();
        assert_eq!(rows, [3.0, 5.0, 7.0]);
    };
    let [first, second] = endpoints();
    let other = thread::spawn(move || sum(second));
    sum(first);
    other.join().unwrap();
}

fn an_aborted_step_keeps_ranks_in_step() {
    let [first, second] = endpoints();
    let other = thread::spawn(move || {
        let (contributions, mut row) = (Contributions::new(), [1.0]);
        contributions.begin_step();
        assert_eq!(contributions.all_reduce(&second, &mut row), Err(RingError::Aborted(0)));
        assert!(contributions.is_aborted());
        contributions.begin_step();
        row = [1.0];
        contributions.all_reduce(&second, &mut row).unwrap();
        assert_eq!(row, [3.0]);
    });
    let (contributions, mut row) = (Contributions::new(), [2.0]);
    contributions.begin_step();
    contributions.abort(&first).unwrap();
    contributions.begin_step();
    contributions.all_reduce(&first, &mut row).unwrap();
    assert_eq!(row, [3.0]);
    other.join().unwrap();
}

/// Two records of six words each in a ring of eight: the writer blocks on the reader.
fn records_arrive_once_and_in_order() {
    let [first, second] = endpoints();
    let writer = thread::spawn(move || {
        let mut ring = BroadcastRing::new(0);
        ring.write(&first, 7, &[1, 2]).unwrap();
        ring.write(&first, 8, &[3, 4]).unwrap();
    });
    let (mut ring, mut body) = (BroadcastRing::new(0), Vec::new());
    assert_eq!(ring.read(&second, &mut body), Ok(7));
    assert_eq!(body, [1, 2]);
    assert_eq!(ring.read(&second, &mut body), Ok(8));
    assert_eq!(body, [3, 4]);
    writer.join().unwrap();
}

fn a_lost_rank_fails_every_wait() {
    let [first, second] = endpoints();
    let watch = thread::spawn(move || first.mark_lost(0));
    let (contributions, mut body) = (Contributions::new(), Vec::new());
    contributions.begin_step();
    assert_eq!(contributions.all_reduce(&second, &mut [1.0]), Err(RingError::Lost(0)));
    assert_eq!(BroadcastRing::new(0).read(&second, &mut body), Err(RingError::Lost(0)));
    watch.join().unwrap();
}
