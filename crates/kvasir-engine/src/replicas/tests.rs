//! Routing against a naive model that scans all replicas, and the rules of each policy.

use crate::replicas::load_order::Load;
use crate::replicas::route::{Imbalance, Route, RouteError, RouteRequest, RouterConfig};
use crate::replicas::router::{Charge, Router};
use crate::request::ids::SessionId;
use kvasir_kv::{KvEvent, Token, prefix_hashes};
use kvasir_testkit::{Random, rounds};
use std::collections::{HashMap, HashSet};

/// Tokens per block.
const BLOCK: usize = 2;

fn router(route: Route, replicas: usize) -> Router {
    Router::new(RouterConfig { block_size: BLOCK as u32, ..RouterConfig::new(route) }, replicas)
}

fn sized(tokens: u64) -> RouteRequest<'static> {
    RouteRequest { tokens, ..RouteRequest::default() }
}

fn picks(router: &mut Router, tokens: &[u64]) -> Vec<usize> {
    let charges = tokens.iter().map(|tokens| router.pick(&sized(*tokens)));
    charges.map(|charge| charge.unwrap().replica()).collect()
}

/// The event that stores the blocks of a prompt with salt 0.
fn stored(prompt: &[Token]) -> KvEvent {
    let hashes: Vec<u64> = prefix_hashes(prompt, 0, BLOCK as u32).collect();
    let tokens = prompt[..hashes.len() * BLOCK].to_vec();
    KvEvent::BlockStored { hashes, parent: None, tokens, block_size: BLOCK as u32, salt: 0 }
}

#[test]
fn route_names_parse_to_their_routes() {
    for &route in Route::ALL {
        assert_eq!(route.to_string().parse(), Ok(route));
    }
    let error = "fastest".parse::<Route>().unwrap_err().to_string();
    assert!(error.contains("`fastest`") && error.contains("least-tokens"), "{error}");
}

#[test]
fn ties_rotate() {
    let mut router = router(Route::LeastRequests, 3);
    assert_eq!(picks(&mut router, &[0, 0, 0, 0]), [0, 1, 2, 0]);
    assert_eq!(picks(&mut self::router(Route::RoundRobin, 2), &[9, 9, 9]), [0, 1, 0]);
}

#[test]
fn round_robin_spreads_evenly_over_available_replicas() {
    let mut router = router(Route::RoundRobin, 4);
    router.set_available(1, false);
    assert_eq!(picks(&mut router, &[0; 6]), [0, 2, 3, 0, 2, 3]);
    router.set_available(1, true);
    assert_eq!(picks(&mut router, &[0; 4]), [0, 1, 2, 3]);
}

#[test]
fn request_weight_adds_to_tokens() {
    let loads = vec![Load { requests: 3, tokens: 10 }, Load { requests: 1, tokens: 100 }];
    let config = RouterConfig::new(Route::LeastTokens);
    let mut light = Router::with_loads(config, loads.clone());
    let mut heavy = Router::with_loads(RouterConfig { request_weight: 100, ..config }, loads);
    assert_eq!((picks(&mut light, &[1]), picks(&mut heavy, &[1])), (vec![0], vec![1]));
}

#[test]
fn failed_send_rolls_back_it_and_later_charges() {
    let mut router = router(Route::LeastRequests, 3);
    let send = |i: usize, _: &Charge| if i == 1 { Err("gone") } else { Ok(()) };
    let (sent, failed) = router.send_all(&[sized(5); 3], send).unwrap();
    assert_eq!((sent.len(), failed), (1, Some("gone")));
    let used: Vec<u64> = router.loads().iter().map(|load| load.requests).collect();
    assert_eq!(used, [1, 0, 0]);
    sent.into_iter().for_each(|charge| router.release(charge));
    assert!(router.loads().iter().all(|load| *load == Load::default()));
}

#[test]
fn groups_may_request_existing_replicas() {
    let mut router = router(Route::LeastRequests, 3);
    let on = |tokens, requested| RouteRequest { requested, ..sized(tokens) };
    let send = |_: usize, charge: &Charge| if charge.replica() == 1 { Err(()) } else { Ok(()) };
    let unknown = router.send_all(&[on(5, None), on(5, Some(3))], send);
    assert_eq!(unknown, Err(RouteError::UnknownReplica(3)));
    assert!(router.loads().iter().all(|load| *load == Load::default()));
    let group = [on(5, Some(2)), on(6, Some(1)), on(7, None)];
    let (sent, failed) = router.send_all(&group, send).unwrap();
    assert_eq!((sent.len(), failed), (1, Some(())));
    let used: Vec<u64> = router.loads().iter().map(|load| load.tokens).collect();
    assert_eq!(used, [0, 0, 5]);
}

#[test]
fn a_pick_fails_only_if_no_replica_is_available() {
    for &route in Route::ALL {
        let mut router = router(route, 2);
        router.set_available(0, false);
        assert_eq!(router.pick(&sized(1)).unwrap().replica(), 1, "{route}");
        let on = |replica| RouteRequest { requested: Some(replica), ..sized(1) };
        assert_eq!(router.pick(&on(0)), Err(RouteError::Unavailable(0)));
        router.set_available(1, false);
        assert_eq!(router.pick(&sized(1)), Err(RouteError::NoneAvailable));
        assert_eq!(router.loads()[1], Load { requests: 1, tokens: 1 }, "a refused pick charges nothing");
        router.set_available(0, true);
        assert_eq!(router.pick(&sized(1)).unwrap().replica(), 0);
    }
}

#[test]
fn a_session_stays_on_its_replica() {
    let mut router = router(Route::Session, 3);
    let of = |session| RouteRequest { session: Some(SessionId(session)), ..sized(1) };
    let first = router.pick(&of(7)).unwrap().replica();
    assert!(picks(&mut router, &[1, 1, 1]).contains(&first));
    for _ in 0..5 {
        assert_eq!(router.pick(&of(7)).unwrap().replica(), first);
    }
    router.set_available(first, false);
    let next = router.pick(&of(7)).unwrap().replica();
    assert_ne!(next, first);
    router.set_available(first, true);
    assert_eq!(router.pick(&of(7)).unwrap().replica(), next, "its prefix is there now");
}

#[test]
fn under_load_requests_with_one_new_prefix_share_a_replica() {
    let config = RouterConfig { block_size: 2, ..RouterConfig::new(Route::Prefix) };
    let mut router = Router::new(RouterConfig { gather_at: 0, ..config }, 4);
    let prompt: Vec<Token> = (0..20).collect();
    let first = router.pick(&RouteRequest::new(&prompt, 0)).unwrap();
    let other: Vec<Token> = (50..70).collect();
    assert_ne!(router.pick(&RouteRequest::new(&other, 0)).unwrap().replica(), first.replica());
    assert_eq!(router.pick(&RouteRequest::new(&prompt, 0)).unwrap().replica(), first.replica());
    // Prompts with different salts share no prefix.
    assert_ne!(router.pick(&RouteRequest::new(&prompt, 1)).unwrap().replica(), first.replica());
    let mut idle = Router::new(config, 4);
    let picks = [(); 4].map(|()| idle.pick(&RouteRequest::new(&prompt, 0)).unwrap().replica());
    assert_eq!(picks, [0, 1, 2, 3], "idle replicas compute it at the same time");
}

#[test]
fn an_overloaded_replica_is_not_chosen_for_its_prefix() {
    let imbalance = Imbalance { requests: 2, factor: 1.5 };
    let config = RouterConfig { block_size: 2, imbalance, ..RouterConfig::new(Route::Prefix) };
    let mut router = Router::new(config, 3);
    let prompt: Vec<Token> = (0..20).collect();
    router.apply(1, &stored(&prompt));
    router.apply(2, &stored(&prompt[..8]));
    let mut pick = || router.pick(&RouteRequest::new(&prompt, 0)).unwrap().replica();
    // Replica 1 holds the whole prompt and takes up to two requests more than replica 0, the least
    // loaded. Then replica 2 does, which holds less.
    assert_eq!([pick(), pick(), pick()], [1, 1, 1]);
    assert_eq!([pick(), pick(), pick()], [2, 2, 2]);
    assert_eq!(pick(), 0);
    router.restarted(1);
    assert_eq!(router.known_blocks(), 4);
}

#[test]
fn a_longer_match_with_an_earlier_checkpoint_loses() {
    let config =
        RouterConfig { block_size: 2, hits_end_at_checkpoints: true, ..RouterConfig::new(Route::Prefix) };
    let mut router = Router::new(config, 2);
    let prompt: Vec<Token> = (0..20).collect();
    let hashes: Vec<u64> = prefix_hashes(&prompt, 0, 2).collect();
    let request = RouteRequest::new(&prompt, 0);
    router.apply(0, &stored(&prompt[..18]));
    router.apply(1, &stored(&prompt[..12]));
    let pick = |router: &mut Router| {
        let charge = router.pick(&request).unwrap();
        let replica = charge.replica();
        router.release(charge);
        (replica, [0, 1].map(|replica| router.held_blocks(replica, &request)))
    };
    assert_eq!(pick(&mut router), (0, [0, 0]), "without a checkpoint, no replica can reuse anything");
    router.apply(0, &KvEvent::CheckpointStored { hash: hashes[3] });
    router.apply(1, &KvEvent::CheckpointStored { hash: hashes[4] });
    assert_eq!([pick(&mut router), pick(&mut router)], [(1, [4, 5]); 2]);
    // A checkpoint behind the replica's own blocks is unreachable.
    router.apply(1, &KvEvent::CheckpointStored { hash: hashes[7] });
    assert_eq!(pick(&mut router), (1, [4, 5]));
    router.apply(1, &KvEvent::CheckpointRemoved { hash: hashes[4] });
    assert_eq!(pick(&mut router), (0, [4, 0]));
    router.restarted(0);
    router.apply(0, &stored(&prompt[..18]));
    assert_eq!(router.held_blocks(0, &request), 0, "a restart removes the checkpoints, too");
}

/// A routed request of the model.
struct Outstanding {
    charge: Charge,
    prompt: Vec<Token>,
}

/// Naive model: replicas as sets of prefixes, all scanned for each pick.
#[derive(Default)]
struct Naive {
    loads: Vec<Load>,
    available: Vec<bool>,
    /// Prefixes of whole blocks in the cache of each replica.
    stored: Vec<HashSet<Vec<Token>>>,
    /// Prefixes with a checkpoint at their end, by replica.
    checkpoints: Vec<HashSet<Vec<Token>>>,
    outstanding: Vec<Outstanding>,
    sessions: HashMap<SessionId, usize>,
    start: usize,
}

/// Prefixes of whole blocks of a prompt without its last token.
fn prefixes(prompt: &[Token]) -> impl DoubleEndedIterator<Item = &[Token]> {
    (1..=(prompt.len() - 1) / BLOCK).map(|blocks| &prompt[..blocks * BLOCK])
}

impl Naive {
    /// Whether an outstanding request of a replica has this prefix.
    fn is_in_use(&self, replica: usize, prefix: &[Token]) -> bool {
        let mut own = self.outstanding.iter().filter(|one| one.charge.replica() == replica);
        own.any(|one| prefixes(&one.prompt).any(|other| other == prefix))
    }

    fn pick(&mut self, config: &RouterConfig, request: &RouteRequest<'_>) -> Option<usize> {
        let available = |replica: &usize| self.available[*replica];
        let all = || (0..self.loads.len()).filter(available);
        let key = |replica: usize| {
            let Load { requests, tokens } = self.loads[replica];
            match config.route {
                Route::RoundRobin => (0, 0),
                Route::LeastTokens => (tokens + config.request_weight * requests, 0),
                _ => (requests, tokens),
            }
        };
        let least = all().map(|replica| self.loads[replica].requests).min()?;
        let (max_requests, gathers) = (config.imbalance.max_requests(least), least >= config.gather_at);
        let fits = |replica: &usize| self.loads[*replica].requests <= max_requests;
        let own = request.session.and_then(|session| self.sessions.get(&session).copied()).filter(available);
        if config.route == Route::Prefix {
            for prefix in prefixes(request.prompt).rev() {
                let can_end =
                    |r: usize| !config.hits_end_at_checkpoints || self.checkpoints[r].contains(prefix);
                let holds = |r: &usize| {
                    self.stored[*r].contains(prefix) && can_end(*r) || gathers && self.is_in_use(*r, prefix)
                };
                let best = all().filter(holds).filter(fits).min_by_key(|&replica| (key(replica), replica));
                if best.is_some() {
                    return best;
                }
            }
            if let Some(own) = own.filter(fits) {
                return Some(own);
            }
        }
        if let (Route::Session, Some(own)) = (config.route, own) {
            return Some(own);
        }
        let count = self.loads.len();
        let cyclic = |replica: usize| (replica + count - self.start) % count;
        let best = all().min_by_key(|&replica| (key(replica), cyclic(replica)));
        let passed = best.filter(|_| config.route == Route::RoundRobin).unwrap_or(self.start);
        self.start = (passed + 1) % count;
        best
    }
}

#[test]
fn picks_equal_those_of_a_naive_model() {
    for seed in 0..rounds(300) {
        let mut random = Random::new(seed);
        let replicas = 1 + random.below(if seed % 4 == 0 { 40 } else { 6 }) as usize;
        let config = RouterConfig {
            request_weight: random.below(9),
            block_size: BLOCK as u32,
            hits_end_at_checkpoints: seed % 3 == 0,
            gather_at: random.below(4),
            imbalance: Imbalance { requests: random.below(6), factor: 1.0 + random.below(3) as f64 / 2.0 },
            ..RouterConfig::new(Route::ALL[seed as usize % Route::ALL.len()])
        };
        let mut router = Router::new(config, replicas);
        let mut naive = Naive {
            loads: vec![Load::default(); replicas],
            available: vec![true; replicas],
            stored: vec![HashSet::new(); replicas],
            checkpoints: vec![HashSet::new(); replicas],
            ..Naive::default()
        };
        for _ in 0..200 {
            step(&mut router, &mut naive, &mut random);
            assert_eq!(router.loads(), naive.loads);
        }
        while !naive.outstanding.is_empty() {
            finish(&mut router, &mut naive, 0);
        }
        let held: HashSet<&Vec<Token>> = naive.stored.iter().flatten().collect();
        let expected = if config.route == Route::Prefix { held.len() } else { 0 };
        assert_eq!(router.known_blocks(), expected, "seed {seed}");
    }
}

fn step(router: &mut Router, naive: &mut Naive, random: &mut Random) {
    let replica = random.below(naive.loads.len() as u64) as usize;
    match random.below(21) {
        0..10 => {
            let prompt: Vec<Token> = (0..1 + random.below(16)).map(|_| random.below(2) as Token).collect();
            let session = Some(SessionId(random.below(5))).filter(|session| session.0 > 0);
            let request = RouteRequest { session, ..RouteRequest::new(&prompt, 0) };
            let (config, expected) = (*router.config(), naive.pick(&router.config().clone(), &request));
            let Ok(charge) = router.pick(&request) else { return assert_eq!(expected, None) };
            assert_eq!(Some(charge.replica()), expected, "{config:?} {:?}", naive.loads);
            let load = &mut naive.loads[charge.replica()];
            (load.requests, load.tokens) = (load.requests + 1, load.tokens + prompt.len() as u64);
            session.map(|session| naive.sessions.insert(session, charge.replica()));
            naive.outstanding.push(Outstanding { charge, prompt });
        }
        10..16 if !naive.outstanding.is_empty() => {
            let at = random.below(naive.outstanding.len() as u64) as usize;
            finish(router, naive, at);
        }
        16..18 => {
            // A cache evicts leaves that no request uses.
            let leaf = naive.stored[replica].iter().find(|prefix| {
                let is_longer = |other: &&Vec<Token>| other.len() > prefix.len() && other.starts_with(prefix);
                !naive.is_in_use(replica, prefix) && !naive.stored[replica].iter().any(|p| is_longer(&p))
            });
            if let Some(leaf) = leaf.cloned() {
                naive.stored[replica].remove(&leaf);
                let hashes = prefix_hashes(&leaf, 0, BLOCK as u32).last().into_iter().collect();
                router.apply(replica, &KvEvent::BlockRemoved { hashes });
            }
        }
        18 => {
            // Picks by hash, because the iteration order of a `HashSet` is not reproducible.
            let random_bits = random.below(u64::MAX);
            let hash_of = |prefix: &[Token]| prefix_hashes(prefix, 0, BLOCK as u32).last();
            let order = |prefix: &&Vec<Token>| hash_of(prefix).unwrap_or_default() ^ random_bits;
            let prefix = naive.stored[replica].iter().min_by_key(order);
            let picked = prefix.and_then(|prefix| Some((prefix.clone(), hash_of(prefix)?)));
            let Some((prefix, hash)) = picked else { return };
            let event = if naive.checkpoints[replica].remove(&prefix) {
                KvEvent::CheckpointRemoved { hash }
            } else {
                naive.checkpoints[replica].insert(prefix);
                KvEvent::CheckpointStored { hash }
            };
            router.apply(replica, &event);
        }
        19 => {
            naive.available[replica] = !naive.available[replica];
            router.set_available(replica, naive.available[replica]);
        }
        _ if !naive.outstanding.iter().any(|one| one.charge.replica() == replica) => {
            naive.stored[replica].clear();
            naive.checkpoints[replica].clear();
            router.restarted(replica);
        }
        _ => {}
    }
}

/// Ends an outstanding request, after its replica has stored its blocks.
fn finish(router: &mut Router, naive: &mut Naive, at: usize) {
    let Outstanding { charge, prompt } = naive.outstanding.swap_remove(at);
    let replica = charge.replica();
    naive.stored[replica].extend(prefixes(&prompt).map(<[Token]>::to_vec));
    router.apply(replica, &stored(&prompt[..prompt.len() - 1]));
    let load = &mut naive.loads[replica];
    (load.requests, load.tokens) = (load.requests - 1, load.tokens - prompt.len() as u64);
    router.release(charge);
}
