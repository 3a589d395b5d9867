//! Bookkeeping that several caches share: steps in flight, sequence tables, block tables of plans,
//! slot copies, draft trees, rewind targets, victims, the eviction order, and small sets and lists.
//!
//! Builds on `contract` and knows no cache.

pub(crate) mod draft_nodes;
pub(crate) mod eviction_order;
pub(crate) mod id_set;
pub(crate) mod in_flight;
pub(crate) mod lazy_vec;
pub(crate) mod plan_writer;
pub(crate) mod recent_set;
pub(crate) mod rewind_target;
pub(crate) mod runs;
pub(crate) mod sequence_table;
pub(crate) mod single_sequence;
pub(crate) mod slot_copies;
pub(crate) mod tail_buffered;
pub(crate) mod victims;
