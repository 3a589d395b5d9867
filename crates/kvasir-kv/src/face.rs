//! The cache traits: `Cache`, which every KV cache implements, and the optional capabilities
//! `Rewind`, `Sequences`, `Prefix` and `Tree`.
//!
//! A capability that a cache lacks is refused by name (`CacheError::NoFace`), so callers need not
//! match on the cache kind. An operation that returns an error has changed nothing. An operation
//! that changes what an unsubmitted plan may name raises `Cache::generation`; `retire` never does.

use crate::{BlockId, CacheError, Plan, Position, Rings, RowMove, SeqId, StepId, Token, VictimSearch};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kinds of `--cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// One sequence and a length counter.
    Contiguous,
    /// A pool of single-token cells, each with a position and a set of owners.
    Cells,
    /// A committed prefix plus candidate frontiers.
    Tree,
    /// Reference-counted blocks, shared by content hash.
    Paged,
    /// Blocks shared through a radix tree over token ids.
    Radix,
}

impl CacheKind {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Contiguous, Self::Cells, Self::Tree, Self::Paged, Self::Radix];

    /// What `--cache` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Cells => "cells",
            Self::Tree => "tree",
            Self::Paged => "paged",
            Self::Radix => "radix",
        }
    }
}

impl fmt::Display for CacheKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a caller may hold beyond the neutral face.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Face {
    /// [`Rewind`].
    Rewind,
    /// [`Sequences`].
    Sequences,
    /// [`Prefix`].
    Prefix,
    /// [`Tree`].
    Tree,
}

impl fmt::Display for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rewind => "rewind",
            Self::Sequences => "sequences",
            Self::Prefix => "prefix",
            Self::Tree => "tree",
        })
    }
}

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRow {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens fed again although their K and V are there (a prefix hit that ends inside a chunk): they are the
    /// last ones before the claimed length, and their writes are redirected to a dummy slot.
    pub redirected: u32,
    /// New tokens, which get slots. For a sequence with a proposed frontier this is the frontier's size.
    pub tokens: u32,
}

impl ClaimRow {
    /// New tokens only.
    pub fn new(seq: SeqId, tokens: u32) -> Self {
        Self { seq, redirected: 0, tokens }
    }
}

/// How a pool's slots are spread. `free + evictable + held + leased + dummy` is the capacity plus dummy slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Slots that nobody owns and that hold nothing anybody could want.
    pub free: u32,
    /// Slots that hold a prefix nobody uses now; they are handed out after the free ones.
    pub evictable: u32,
    /// Slots that live sequences own.
    pub held: u32,
    /// Slots given up by their owners that a step in flight still names.
    pub leased: u32,
}

impl Room {
    /// Slots that a claim can get now.
    pub fn available(self) -> u32 {
        self.free + self.evictable
    }

    /// [`Cache::survey`] of a pool that is filled from slot 0 on.
    pub(crate) fn survey_line(self, slots: &mut Vec<BlockUse>) {
        slots.clear();
        for (n, used) in
            [(self.held, BlockUse::Held), (self.leased, BlockUse::Leased), (self.free, BlockUse::Free)]
        {
            slots.resize(slots.len() + n as usize, used);
        }
    }
}

/// What one block (or cell) is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockUse {
    /// For nothing.
    Free,
    /// It holds a prefix that nobody uses now.
    Cached,
    /// Live sequences own it.
    Held,
    /// Its owners gave it up; a step in flight still names it.
    Leased,
    /// It takes redirected writes and is never handed out.
    Dummy,
}

/// What every cache offers. A step goes *claim → plan → submit → retire*.
///
/// `claim` takes slots for every token of the step, or none with an error that changes nothing. `plan` only
/// reads. `retire` publishes lengths, is idempotent per step, and ends the step's lease; `cancel` gives the slots
/// of a claim that was never submitted back. Steps retire in the order of their claims. With several steps in flight a
/// claim builds on the *claimed* length; [`Cache::len`] reports the retired one.
///
/// Every verb that changes what an unsubmitted plan may name raises [`Cache::generation`]; `retire` does not.
pub trait Cache: Send {
    /// Which kind it is.
    fn kind(&self) -> CacheKind;
    /// Slots it may ever hand out.
    fn capacity(&self) -> u32;
    /// Slots that are handed out together; 1 where single slots are.
    fn block_size(&self) -> u32;
    /// Positions at the start of every sequence that lie in a [`SharedPrefix`](crate::SharedPrefix) and take no slots here.
    fn base(&self) -> Position {
        0
    }
    /// The rings that layers with a window keep, where they keep them.
    fn rings(&self) -> Option<&Rings> {
        None
    }
    /// How its slots are spread now.
    fn room(&self) -> Room;
    /// Writes what each block is used for, by its id; those behind the last one are free. Nothing where that is not kept. For
    /// pictures: it may take time in the size of what was ever used.
    fn survey(&self, blocks: &mut Vec<BlockUse>) {
        blocks.clear();
    }
    /// Counts every change that can make a plan stale.
    fn generation(&self) -> u64;
    /// Begins a sequence that owns nothing; its length is [`Cache::base`].
    fn open(&mut self) -> Result<SeqId, CacheError>;
    /// Ends a sequence. What only it owned comes back now, or when the last step that names it retires.
    fn close(&mut self, seq: SeqId) -> Result<(), CacheError>;
    /// Which of the candidates to close so that enough slots come free, written into `victims`.
    /// False, and none, if not even all of them are enough. Changes nothing; takes time in the
    /// lengths of the candidates' tables.
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool;
    /// Whether a claim of `tokens` more for this sequence would find room now.
    fn can_extend(&self, seq: SeqId, tokens: u32) -> bool;
    /// Takes slots for what a sequence will claim up to length `upto`, without a step: claims use them first. Returns the
    /// length up to which it holds slots now; with `upto` 0 nothing is taken. Takes all or nothing. A cache whose
    /// slots are taken by claims alone takes none.
    fn take_ahead(&mut self, seq: SeqId, upto: u32) -> Result<u32, CacheError> {
        let _ = upto;
        self.claimed_len(seq)
    }
    /// Takes memory, not slots, for a sequence that may grow to `tokens`, so that its steps take none.
    fn expect(&mut self, seq: SeqId, tokens: u32) {
        let _ = (seq, tokens);
    }
    /// Appends the blocks that a sequence holds, in order of position, those taken ahead included: for looking in. Where
    /// single slots are handed out, each is a block.
    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError>;
    /// Retired length: tokens whose K and V are there.
    fn len(&self, seq: SeqId) -> Result<u32, CacheError>;
    /// Length with all claims in flight.
    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError>;
    /// Position that the next claimed token gets; differs from the length after a removal.
    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError>;
    /// Takes slots for one step.
    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError>;
    /// Writes the plan of a claimed step into `plan`, reusing its memory.
    fn plan(&self, step: StepId, plan: &mut Plan) -> Result<(), CacheError>;
    /// Ends a step that ran: its lengths are published and what it alone kept alive is freed.
    fn retire(&mut self, step: StepId) -> Result<(), CacheError>;
    /// Undoes the claim of a step that was not run; only the newest claim can be undone.
    fn cancel(&mut self, step: StepId) -> Result<(), CacheError>;
    /// Forgets every sequence and everything shared; refused while a step is in flight.
    fn clear(&mut self) -> Result<(), CacheError>;
    /// Walks the whole bookkeeping and reports the first thing that does not add up.
    fn check(&self) -> Result<(), String>;

    /// Moves rows so that the fastest path applies again, where that takes moves; returns how many go out with the next
    /// plan. Refused while a step is in flight.
    fn compact(&mut self) -> Result<u32, CacheError> {
        Ok(0)
    }
    /// Refuses positions of a write that are no run from the sequence's next position on, for callers that bring
    /// their own.
    fn check_positions(&self, seq: SeqId, positions: &[Position]) -> Result<(), CacheError> {
        let (next, length) = (self.next_position(seq)?, self.claimed_len(seq)?);
        match positions.first() {
            Some(&start) if start != next => Err(CacheError::StartNotLength { start, length }),
            _ if positions.windows(2).any(|pair| pair[0].checked_add(1) != Some(pair[1])) => {
                Err(CacheError::NotARun)
            }
            _ => Ok(()),
        }
    }
    /// Refuses a plan that something has changed under.
    fn check_fresh(&self, plan: &Plan) -> Result<(), CacheError> {
        match plan.generation == self.generation() {
            true => Ok(()),
            false => Err(CacheError::StalePlan { plan: plan.generation, current: self.generation() }),
        }
    }
    /// The rewind face.
    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        Err(CacheError::NoFace { kind: self.kind(), face: Face::Rewind })
    }
    /// The sequence face.
    fn sequences(&mut self) -> Result<&mut dyn Sequences, CacheError> {
        Err(CacheError::NoFace { kind: self.kind(), face: Face::Sequences })
    }
    /// The prefix face.
    fn prefix(&mut self) -> Result<&mut dyn Prefix, CacheError> {
        Err(CacheError::NoFace { kind: self.kind(), face: Face::Prefix })
    }
    /// The tree face.
    fn tree(&mut self) -> Result<&mut dyn Tree, CacheError> {
        Err(CacheError::NoFace { kind: self.kind(), face: Face::Tree })
    }
}

/// Truncation of one sequence.
pub trait Rewind {
    /// The lowest length that [`Rewind::rewind_to`] takes.
    fn lowest_rewind(&self, seq: SeqId) -> Result<u32, CacheError> {
        let _ = seq;
        Ok(0)
    }
    /// Drops every position from `to` on. Refused outside what is still held.
    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError>;
}

/// Forks and removals, without moving more than a partial block.
pub trait Sequences {
    /// Makes `dst` an owner of `src`'s retired rows with positions in `range`: claimed ones may yet be cancelled. Refused
    /// where `dst` already owns one of the positions, or `src` owns nothing at all.
    fn copy(&mut self, src: SeqId, dst: SeqId, range: std::ops::Range<Position>) -> Result<(), CacheError>;
    /// Takes `seq` off the rows in `range`; never renumbers what is left.
    fn remove(&mut self, seq: SeqId, range: std::ops::Range<Position>) -> Result<(), CacheError>;
    /// Closes every other sequence of `seq`'s fork family.
    fn keep(&mut self, seq: SeqId) -> Result<(), CacheError>;
    /// Opens `n` sequences that own all retired rows of `seq`.
    fn fork(&mut self, seq: SeqId, n: u32) -> Result<Vec<SeqId>, CacheError>;
}

/// What a prompt found of what earlier requests left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    /// Tokens whose K and V are there already.
    pub tokens: u32,
    /// Slots of the hit that nobody uses now: attaching takes them out of [`Room::evictable`].
    pub idle: u32,
    /// Which lookup this is.
    #[serde(skip)]
    pub lookup: Lookup,
}

/// Names one lookup, so that what it found can be attached without looking again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookup(pub(crate) u64);

/// Hits are equal if as much was found, whoever looked.
impl PartialEq for Lookup {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Lookup {}

/// Sharing by content.
pub trait Prefix {
    /// What `tokens` would find. Never the whole of it: the last token is always computed. `salt` keeps tenants apart.
    /// Takes nothing and gives nothing up; it counts as a use of what it finds.
    fn lookup(&mut self, tokens: &[Token], salt: u64) -> Hit;
    /// Gives `seq`, which must own nothing yet, what `tokens` finds; its length is then the hit. At most `limit` tokens. Where
    /// `lookup` is of these tokens and nothing has changed since, they are not looked up again.
    fn attach(
        &mut self,
        seq: SeqId,
        tokens: &[Token],
        salt: u64,
        limit: u32,
        lookup: Lookup,
    ) -> Result<Hit, CacheError>;
    /// Makes `seq`'s rows findable by others, up to `computed` tokens, of which `tokens` are the ids. Only what has
    /// retired may be published; a sequence with holes never is. It also counts as a use of what was there before, so
    /// call it when a sequence ends even if nothing new is to be published.
    fn publish(&mut self, seq: SeqId, tokens: &[Token], computed: u32) -> Result<(), CacheError>;
    /// Evicts at least `slots` slots of what nobody uses, or all of it; returns how many.
    fn evict(&mut self, slots: u32) -> Result<u32, CacheError>;
}

/// Candidate tokens that are run before it is known which are right.
pub trait Tree {
    /// Declares the frontier that the next claim of `seq` runs. `parents[i]` is the node number of its parent, over
    /// all unsettled nodes of the sequence, or −1 for the committed prefix. It takes the place of one that was not claimed yet;
    /// an empty one withdraws that.
    fn propose(&mut self, seq: SeqId, parents: &[i32]) -> Result<(), CacheError>;
    /// Keeps the accepted chain (node numbers from a root on) as committed tokens and drops all other nodes. The row moves
    /// that this takes go out with the next plan; they are returned for inspection.
    fn commit(&mut self, seq: SeqId, accepted: &[u32]) -> Result<&[RowMove], CacheError>;
    /// Number of unsettled nodes.
    fn unsettled(&self, seq: SeqId) -> Result<u32, CacheError>;
}
