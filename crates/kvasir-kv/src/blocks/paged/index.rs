//! `HashIndex`: the prefix-cache index of `paged`: hash chains of published blocks, a free list,
//! and an LRU of evictable blocks.
//!
//! - Lookup: per block, hash (parent hash, tokens), then compare tokens, tenant salt and the
//!   parent's content number. A hash collision can therefore never yield another prefix.
//! - Content numbers name a prefix of one tenant exactly; blocks with equal content share the
//!   number and stand in for each other.
//! - Allocation: lowest vacant id first, then the least recently released published block (its
//!   content is forgotten).
//! - A sequence releases its blocks from the end, so chains are evicted leaf first.
//! - At most `MAX_PROBES` blocks per hash are searched; forged collisions beyond that are neither
//!   found nor published.
//!
//! Guarded by the unit tests with a constant hash, `tests/prefix_model.rs` and `tests/shadow`.

use crate::blocks::BlockConfig;
use crate::blocks::event_log::EventLog;
use crate::blocks::hash::{BlockHashMap, hash_with, root_hash};
use crate::blocks::index::{Found, Index, Offer};
use crate::blocks::miss_history::{Miss, MissHistory, MissReason, NewBlock};
use crate::blocks::paged::announced::{Announced, PublishedBlock, ROOT};
use crate::blocks::paged::lru::Lru;
use crate::blocks::unpublished_anchors::UnpublishedAnchors;
use crate::contract::error::CacheError;
use crate::contract::group::Anchor;
use crate::contract::ids::{BlockId, Token};
use crate::contract::kind::CacheKind;
use crate::contract::kv_event::KvEvent;
use crate::shared::eviction_order::EvictionOrder;
use crate::shared::id_set::IdSet;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

const NONE: BlockId = BlockId::MAX;
/// Content number of a block that is not published.
const UNPUBLISHED: u64 = 0;
/// Most blocks of one hash that are compared. Only forged prompts have more; blocks beyond are
/// neither found nor published.
const MAX_PROBES: usize = 64;

/// Hash of (parent hash, tokens); the vector is scratch memory. Replaced in tests to force
/// collisions.
type HashFn = fn(Option<u64>, &[Token], &mut Vec<u64>) -> u64;

/// Content of a published block. A content number names one prefix of one tenant: two blocks share
/// it only if all their tokens, and all tokens before, were compared equal. Numbers are never
/// reused.
#[derive(Clone, Copy, Debug, Default)]
struct Content {
    /// Content number; `UNPUBLISHED` if there is no content.
    number: u64,
    /// Content number of the block before.
    parent: u64,
    salt: u64,
    hash: u64,
    /// Links of the list of blocks with this hash.
    before: BlockId,
    after: BlockId,
    /// Whether it is in the LRU list.
    evictable: bool,
}

/// Published blocks by chained hash, each verified by its tokens and its parent's content.
/// Allocation takes vacant blocks first, lowest id first, then the least recently released
/// published one.
#[derive(Clone, Debug)]
pub struct HashIndex {
    block_size: usize,
    hash: HashFn,
    /// Free blocks: unused and unpublished.
    vacant: IdSet,
    /// Evictable blocks: unused and published, least recently released first.
    lru: Lru,
    contents: Vec<Content>,
    /// Tokens of every published block, for verification.
    tokens: Vec<Token>,
    /// The first block of each hash; others with that hash are linked behind it.
    heads: BlockHashMap<BlockId>,
    /// The newest content number.
    numbers: u64,
    published: u32,
    words: Vec<u64>,
    /// What the recorded KV events have announced, if recording is on.
    announced: Option<Box<Announced>>,
    /// Anchors whose content no published block holds any more.
    unpublished: UnpublishedAnchors,
    history: MissHistory,
}

impl HashIndex {
    /// An index over the blocks of a cache, all of them free.
    pub fn new(config: &BlockConfig) -> Result<Self, CacheError> {
        Self::with_hash(config, hash_with)
    }

    fn with_hash(config: &BlockConfig, hash: HashFn) -> Result<Self, CacheError> {
        let ids = config.ids()?;
        let bound = ids.end as usize;
        let mut vacant = IdSet::new(ids.end);
        for id in ids {
            vacant.insert(id);
        }
        let shared = if config.sharing { bound } else { 0 };
        Ok(Self {
            block_size: config.block_size as usize,
            hash,
            vacant,
            lru: Lru::new(bound as u32),
            contents: vec![Content::default(); bound],
            tokens: vec![0; shared * config.block_size as usize],
            heads: BlockHashMap::with_capacity_and_hasher(shared, BuildHasherDefault::default()),
            numbers: ROOT,
            published: 0,
            words: Vec::new(),
            announced: None,
            unpublished: UnpublishedAnchors::default(),
            history: MissHistory::new(shared),
        })
    }

    /// Number of published blocks.
    pub fn published(&self) -> u32 {
        self.published
    }

    /// Hash of a block, if it is published.
    pub fn hash_of(&self, block: BlockId) -> Option<u64> {
        self.is_published(block).then(|| self.contents[block as usize].hash)
    }

    /// A published block with this hash, not verified by tokens.
    pub fn find_hash(&self, hash: u64) -> Option<BlockId> {
        self.heads.get(&hash).copied()
    }

    fn tokens_of(&self, block: BlockId) -> &[Token] {
        let first = block as usize * self.block_size;
        &self.tokens[first..first + self.block_size]
    }

    /// Appends events that store all announced contents.
    fn announce_all(&self, into: &mut Vec<KvEvent>) {
        let Some(announced) = &self.announced else { return };
        let published = (0..).zip(&self.contents).filter(|(_, content)| content.number != UNPUBLISHED);
        let blocks: HashMap<u64, BlockId> = published.map(|(at, content)| (content.number, at)).collect();
        let mut log = EventLog::with_limit(usize::MAX);
        for (number, hash, parent) in announced.parents_first() {
            let Some(&block) = blocks.get(&number) else { continue };
            log.stored(hash, parent, self.contents[block as usize].salt, self.tokens_of(block));
        }
        log.take(into);
    }

    /// The block that holds `tokens` after the content `parent`, or how the search ended.
    fn seek(&self, hash: u64, parent: u64, salt: u64, tokens: &[Token]) -> Result<BlockId, Probed> {
        let mut at = self.heads.get(&hash).copied().unwrap_or(NONE);
        for _ in 0..MAX_PROBES {
            if at == NONE {
                return Err(Probed::All);
            }
            let content = &self.contents[at as usize];
            if content.parent == parent && content.salt == salt && self.tokens_of(at) == tokens {
                return Ok(at);
            }
            at = content.after;
        }
        Err(Probed::TooMany)
    }

    /// Links a block under its hash: behind `twin` if that has equal content, else behind the head.
    fn link(&mut self, block: BlockId, mut content: Content, twin: Option<BlockId>) {
        let head = *self.heads.entry(content.hash).or_insert(block);
        content.before = NONE;
        content.after = NONE;
        if head != block {
            let before = twin.unwrap_or(head);
            content.before = before;
            content.after = std::mem::replace(&mut self.contents[before as usize].after, block);
            if content.after != NONE {
                self.contents[content.after as usize].before = block;
            }
        }
        self.contents[block as usize] = content;
        self.published += 1;
    }

    /// Evicts a published block: removes it from the index.
    fn unlink(&mut self, block: BlockId) {
        let content = std::mem::take(&mut self.contents[block as usize]);
        // Blocks of equal content are adjacent in the linked list.
        let is_duplicate =
            |other: BlockId| other != NONE && self.contents[other as usize].number == content.number;
        if self.unpublished.is_recording() && !is_duplicate(content.before) && !is_duplicate(content.after) {
            self.unpublished.extend([Anchor(content.number)]);
        }
        match (content.before, content.after) {
            (NONE, NONE) => {
                self.heads.remove(&content.hash);
            }
            (NONE, after) => {
                self.heads.insert(content.hash, after);
            }
            (before, after) => self.contents[before as usize].after = after,
        }
        if content.after != NONE {
            self.contents[content.after as usize].before = content.before;
        }
        self.published -= 1;
        self.history.on_evict(block);
        if let Some(announced) = &mut self.announced {
            announced.on_unpublish(content.number);
        }
    }
}

/// How an unsuccessful search ended: all candidates compared, or too many.
enum Probed {
    All,
    TooMany,
}

/// A position in a chain of blocks: content number and hash of the last block.
#[derive(Clone, Copy)]
struct ChainEnd {
    number: u64,
    hash: Option<u64>,
}

impl ChainEnd {
    /// Beginning of a tenant's prompts: a non-zero salt takes the place of the parent hash.
    fn root(salt: u64) -> Self {
        Self { number: ROOT, hash: root_hash(salt) }
    }
}

impl Index for HashIndex {
    const KIND: CacheKind = CacheKind::Paged;
    // The last block of a prompt is released first, so that LRU evicts a chain leaf first.
    const FROM_END: bool = true;

    fn free(&self) -> u32 {
        self.vacant.len()
    }

    fn evictable(&self) -> u32 {
        self.lru.len()
    }

    fn take(&mut self) -> Option<BlockId> {
        if let Some(block) = self.vacant.first() {
            self.vacant.remove(block);
            return Some(block);
        }
        let block = self.lru.next()?;
        self.unlink(block);
        Some(block)
    }

    fn hold(&mut self, block: BlockId) {
        if std::mem::take(&mut self.contents[block as usize].evictable) {
            self.lru.on_use(block);
        } else {
            self.vacant.remove(block);
        }
    }

    fn release(&mut self, block: BlockId) {
        if self.is_published(block) {
            self.contents[block as usize].evictable = true;
            self.lru.on_release(block, ());
        } else {
            self.vacant.insert(block);
        }
    }

    fn anchor(&self, block: BlockId) -> Option<Anchor> {
        self.is_published(block).then(|| Anchor(self.contents[block as usize].number))
    }

    fn block_hash(&self, block: BlockId) -> Option<u64> {
        self.hash_of(block)
    }

    fn unpublished_anchors(&mut self) -> &mut UnpublishedAnchors {
        &mut self.unpublished
    }

    fn is_published(&self, block: BlockId) -> bool {
        self.contents.get(block as usize).is_some_and(|content| content.number != UNPUBLISHED)
    }

    fn find(&mut self, tokens: &[Token], salt: u64, limit: u32, found: &mut Vec<BlockId>) -> Found {
        let mut end = ChainEnd::root(salt);
        let mut words = std::mem::take(&mut self.words);
        let mut evictable = 0;
        for tokens in tokens.chunks_exact(self.block_size).take(limit as usize) {
            let hash = (self.hash)(end.hash, tokens, &mut words);
            let Ok(block) = self.seek(hash, end.number, salt, tokens) else { break };
            let content = &self.contents[block as usize];
            end = ChainEnd { number: content.number, hash: Some(hash) };
            evictable += u32::from(content.evictable);
            found.push(block);
        }
        self.words = words;
        Found { blocks: found.len() as u32, evictable }
    }

    fn explain(&mut self, miss: Miss<'_>) -> MissReason {
        // A block whose parent was evicted stays published, but no lookup reaches it.
        let Self { history, heads, contents, words, hash, .. } = self;
        let parent = miss.parent.map(|parent| contents[parent as usize].hash);
        let is_unreachable =
            || heads.contains_key(&(*hash)(parent.or_else(|| root_hash(miss.salt)), miss.tokens, words));
        history.explain(miss, is_unreachable)
    }

    fn publish(&mut self, offer: Offer<'_>, _canonical: &mut Vec<BlockId>) -> u32 {
        let from = offer.from;
        let mut end = match from.checked_sub(1).map(|before| self.contents[offer.table[before] as usize]) {
            None => ChainEnd::root(offer.salt),
            Some(Content { number: UNPUBLISHED, .. }) => return 0,
            Some(before) => ChainEnd { number: before.number, hash: Some(before.hash) },
        };
        let mut words = std::mem::take(&mut self.words);
        if let Some(announced) = &mut self.announced {
            announced.begin_publication();
        }
        let tokens = offer.tokens.chunks_exact(self.block_size);
        let mut done = offer.table.len().min(tokens.len() as u32);
        let blocks = (from..done).zip(offer.table.range(from..done)).zip(tokens.skip(from as usize));
        for ((at, block), tokens) in blocks {
            if self.is_published(block) {
                let content = self.contents[block as usize];
                end = ChainEnd { number: content.number, hash: Some(content.hash) };
                continue;
            }
            let hash = (self.hash)(end.hash, tokens, &mut words);
            let twin = match self.seek(hash, end.number, offer.salt, tokens) {
                Ok(twin) => Some(twin),
                Err(Probed::All) => None,
                Err(Probed::TooMany) => {
                    done = at;
                    break;
                }
            };
            let number = match twin {
                Some(twin) => self.contents[twin as usize].number,
                None => {
                    self.numbers += 1;
                    self.numbers
                }
            };
            let first = block as usize * self.block_size;
            self.tokens[first..first + self.block_size].copy_from_slice(tokens);
            let content =
                Content { number, parent: end.number, salt: offer.salt, hash, ..Content::default() };
            self.link(block, content, twin);
            let parent = at.checked_sub(1).map(|before| offer.table[before]);
            self.history.on_publish(NewBlock { block, parent, salt: offer.salt, tokens });
            if let Some(announced) = &mut self.announced {
                let parent_hash = end.hash.filter(|_| end.number != ROOT);
                let (parent, salt) = (end.number, offer.salt);
                announced.on_publish(PublishedBlock { number, hash, parent, parent_hash, salt, tokens });
            }
            end = ChainEnd { number, hash: Some(hash) };
        }
        self.words = words;
        done
    }

    fn evict(&mut self, blocks: u32) -> u32 {
        let mut evicted = 0;
        while evicted < blocks
            && let Some(block) = self.lru.next()
        {
            self.unlink(block);
            self.vacant.insert(block);
            evicted += 1;
        }
        evicted
    }

    fn forget(&mut self) {
        while let Some(block) = self.lru.next() {
            self.vacant.insert(block);
        }
        let published = self.contents.iter().filter(|content| content.number != UNPUBLISHED);
        self.unpublished.extend(published.map(|content| Anchor(content.number)));
        self.contents.fill(Content::default());
        self.heads.clear();
        self.published = 0;
        self.history.on_forget();
        if let Some(announced) = &mut self.announced {
            announced.on_forget();
        }
    }

    fn record_events(&mut self) {
        self.announced.get_or_insert_default();
    }

    fn take_events(&mut self, into: &mut Vec<KvEvent>) {
        if let Some(announced) = &mut self.announced
            && announced.take(into)
        {
            self.announce_all(into);
        }
    }

    fn check(&self, used: &dyn Fn(BlockId) -> bool) -> Result<(), String> {
        let evictable: std::collections::HashSet<BlockId> = self.lru.iter().collect();
        if evictable.len() != self.lru.len() as usize {
            return Err(format!("{} evictable blocks linked, {} counted", evictable.len(), self.lru.len()));
        }
        let mut published = 0;
        let first = u32::from(!self.vacant.contains(0) && !used(0) && !evictable.contains(&0));
        for block in first..self.contents.len() as u32 {
            let places = [self.vacant.contains(block), evictable.contains(&block), used(block)];
            if places.iter().filter(|&&is_there| is_there).count() != 1 {
                return Err(format!("block {block} is vacant, evictable, used: {places:?}"));
            }
            if self.is_published(block) == self.vacant.contains(block) && !used(block) {
                return Err(format!("block {block} is vacant and published, or evictable and not"));
            }
            published += u32::from(self.is_published(block));
        }
        let mut linked = 0;
        for (&hash, &head) in &self.heads {
            let mut before = NONE;
            let mut at = head;
            while at != NONE {
                let content = &self.contents[at as usize];
                if content.hash != hash || content.before != before || content.number == UNPUBLISHED {
                    return Err(format!("block {at} is wrongly filed under hash {hash}"));
                }
                linked += 1;
                before = at;
                at = content.after;
            }
        }
        if linked == published && published == self.published {
            Ok(())
        } else {
            Err(format!("{published} blocks published, {linked} filed, {} counted", self.published))
        }
    }
}

#[cfg(test)]
mod tests;
