//! `RoleRouter`: routes prefill and decode of requests to replicas by their roles.
//!
//! Each phase has a [`Router`] over the replicas that run it. If all replicas run both phases, both
//! share one. Load on a replica of role `both` is charged in both routers. If no replica of a
//! phase's roles is available, any other is picked, because every engine can run both phases.
//!
//! Invariant: every [`RoleCharge`] is released exactly once.

use crate::replicas::load_order::Load;
use crate::replicas::role::{Phase, Role};
use crate::replicas::route::{RouteError, RouteRequest, RouterConfig};
use crate::replicas::router::{Charge, Router};
use kvasir_kv::KvEvent;

/// The load charged for one run of a request. Pass it to [`RoleRouter::release`] once.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct RoleCharge {
    replica: usize,
    prefill: Option<Charge>,
    decode: Option<Charge>,
}

impl RoleCharge {
    /// Index of the chosen replica.
    pub fn replica(&self) -> usize {
        self.replica
    }
}

/// Routers over the replicas of each phase.
#[derive(Clone, Debug)]
pub struct RoleRouter {
    roles: Vec<Role>,
    prefill: Router,
    /// `None` if all replicas run both phases.
    decode: Option<Router>,
}

impl From<Router> for RoleRouter {
    /// Every replica runs both phases.
    fn from(router: Router) -> Self {
        Self { roles: vec![Role::Both; router.loads().len()], prefill: router, decode: None }
    }
}

impl RoleRouter {
    /// A router over idle replicas with these roles, all available.
    pub fn new(config: RouterConfig, roles: Vec<Role>) -> Self {
        let router = Router::new(config, roles.len());
        if roles.iter().all(|role| *role == Role::Both) {
            return router.into();
        }
        let mut routers = Self { prefill: router.clone(), decode: Some(router), roles };
        (0..routers.roles.len()).for_each(|replica| {
            routers.set_available(replica, false);
            routers.set_available(replica, true);
        });
        routers
    }

    /// Role of a replica.
    pub fn role(&self, replica: usize) -> Role {
        self.roles.get(replica).copied().unwrap_or_default()
    }

    /// Tokens per block of the replicas' prefix caches.
    pub fn block_size(&self) -> u32 {
        self.prefill.config().block_size
    }

    /// Outstanding load of a replica.
    pub fn load(&self, replica: usize) -> Load {
        let load = |router: &Router| router.loads().get(replica).copied().unwrap_or_default();
        match &self.decode {
            Some(decode) if !self.role(replica).runs(Phase::Prefill) => load(decode),
            _ => load(&self.prefill),
        }
    }

    /// Sets whether a replica may be picked.
    pub fn set_available(&mut self, replica: usize, is_available: bool) {
        let role = self.role(replica);
        self.prefill.set_available(replica, is_available && role.runs(Phase::Prefill));
        if let Some(decode) = &mut self.decode {
            decode.set_available(replica, is_available && role.runs(Phase::Decode));
        }
    }

    /// Applies a KV event of a replica; events must come in order.
    pub fn apply(&mut self, replica: usize, event: &KvEvent) {
        let role = self.role(replica);
        if role.runs(Phase::Prefill) {
            self.prefill.apply(replica, event);
        }
        if let Some(decode) = self.decode.as_mut().filter(|_| role.runs(Phase::Decode)) {
            decode.apply(replica, event);
        }
    }

    /// Forgets the blocks of a replica that restarts with an empty prefix cache.
    pub fn restarted(&mut self, replica: usize) {
        self.apply(replica, &KvEvent::AllBlocksCleared);
    }

    /// Picks a replica for a phase of a request, or the requested one, and charges it. On error
    /// nothing is charged.
    pub fn pick(&mut self, phase: Phase, request: &RouteRequest<'_>) -> Result<RoleCharge, RouteError> {
        let Some(decode) = &mut self.decode else {
            let charge = self.prefill.pick(request)?;
            return Ok(RoleCharge { replica: charge.replica(), prefill: Some(charge), decode: None });
        };
        let (router, other) = match phase {
            Phase::Prefill => (&mut self.prefill, decode),
            Phase::Decode => (decode, &mut self.prefill),
        };
        match router.pick(request) {
            Ok(own) => {
                let replica = own.replica();
                // A replica of both roles carries the load of both.
                let both = other.pick(&RouteRequest { requested: Some(replica), ..*request }).ok();
                Ok(RoleCharge::of(phase, replica, Some(own), both))
            }
            Err(_) => {
                let charge = other.pick(request)?;
                Ok(RoleCharge::of(phase, charge.replica(), None, Some(charge)))
            }
        }
    }

    /// Picks a replica that decodes a request after another has computed its prompt, and charges
    /// it. `None` if no replica of the roles `decode` and `both` is available.
    pub fn pick_decode(&mut self, request: &RouteRequest<'_>) -> Option<RoleCharge> {
        let decode = self.decode.as_mut()?;
        let charge = decode.pick(request).ok()?;
        let replica = charge.replica();
        let both = self.prefill.pick(&RouteRequest { requested: Some(replica), ..*request }).ok();
        Some(RoleCharge { replica, prefill: both, decode: Some(charge) })
    }

    /// Number of leading tokens of a prompt that a decode replica has cached, according to its KV
    /// events.
    pub fn held_tokens(&self, replica: usize, request: &RouteRequest<'_>) -> u32 {
        let router = self.decode.as_ref().unwrap_or(&self.prefill);
        router.held_blocks(replica, request) * self.block_size()
    }

    /// Releases a charge.
    pub fn release(&mut self, charge: RoleCharge) {
        let RoleCharge { prefill, decode, .. } = charge;
        prefill.into_iter().for_each(|charge| self.prefill.release(charge));
        if let Some(router) = &mut self.decode {
            decode.into_iter().for_each(|charge| router.release(charge));
        }
    }
}

impl RoleCharge {
    fn of(phase: Phase, replica: usize, own: Option<Charge>, other: Option<Charge>) -> Self {
        match phase {
            Phase::Prefill => Self { replica, prefill: own, decode: other },
            Phase::Decode => Self { replica, prefill: other, decode: own },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::route::Route;
    use kvasir_testkit::Random;

    fn request(prompt: &[u32]) -> RouteRequest<'_> {
        RouteRequest::new(prompt, 0)
    }

    #[test]
    fn phases_are_routed_to_their_roles() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let count = random.between(1, 6) as usize;
            let roles: Vec<Role> = (0..count).map(|_| random.pick(Role::ALL)).collect();
            let config = RouterConfig { block_size: 4, ..RouterConfig::new(random.pick(Route::ALL)) };
            let mut router = RoleRouter::new(config, roles.clone());
            let (mut ready, mut charges) = (vec![true; count], Vec::<RoleCharge>::new());
            for _ in 0..200 {
                let replica = random.below(count as u64) as usize;
                let phase = if random.chance(50) { Phase::Prefill } else { Phase::Decode };
                let prompt = vec![random.below(2) as u32; random.between(1, 30) as usize];
                match random.below(10) {
                    0 => {
                        ready[replica] = random.chance(60);
                        router.set_available(replica, ready[replica]);
                    }
                    1..4 if !charges.is_empty() => {
                        let charge = charges.swap_remove(random.below(charges.len() as u64) as usize);
                        router.release(charge);
                    }
                    4 => {
                        let requested = RouteRequest { requested: Some(replica), ..request(&prompt) };
                        let picked = router.pick(phase, &requested);
                        assert_eq!(picked.is_ok(), ready[replica], "seed {seed}: {picked:?}");
                        charges.extend(picked);
                    }
                    5 => {
                        let has_target = |(role, ready): (&Role, &bool)| *ready && role.runs(Phase::Decode);
                        let picked = router.pick_decode(&request(&prompt));
                        let any = roles.iter().zip(&ready).any(has_target);
                        let has_roles = roles.iter().any(|role| *role != Role::Both);
                        assert_eq!(picked.is_some(), any && has_roles, "seed {seed}");
                        charges.extend(picked);
                    }
                    _ => {
                        let picked = router.pick(phase, &request(&prompt));
                        assert_eq!(picked.is_ok(), ready.contains(&true), "seed {seed}");
                        let Ok(charge) = picked else { continue };
                        let is_meant = |replica: usize| ready[replica] && roles[replica].runs(phase);
                        assert!(ready[charge.replica()]);
                        assert!(is_meant(charge.replica()) || !(0..count).any(is_meant), "seed {seed}");
                        charges.push(charge);
                    }
                }
                for replica in 0..count {
                    let open = charges.iter().filter(|charge| charge.replica() == replica).count() as u64;
                    assert_eq!(router.load(replica).requests, open, "seed {seed}, {roles:?}");
                }
            }
        }
    }

    #[test]
    fn role_names_are_parsed() {
        for role in Role::ALL {
            assert_eq!(role.name().parse(), Ok(*role));
        }
        assert!("all".parse::<Role>().unwrap_err().to_string().contains("prefill, decode, both"));
    }
}
