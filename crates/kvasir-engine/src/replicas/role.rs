//! `Role`: the phases of requests that a replica runs (disaggregated prefill).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The phases of requests that a replica runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Computes prompts. The requests then move to a replica that decodes.
    Prefill,
    /// Decodes requests whose prompts another replica has computed.
    Decode,
    /// Runs both phases.
    #[default]
    Both,
}

impl Role {
    /// All roles.
    pub const ALL: &[Self] = &[Self::Prefill, Self::Decode, Self::Both];

    /// The name that `FromStr` parses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Both => "both",
        }
    }

    /// Whether a replica of this role runs a phase. Others run it only if no such replica is
    /// available.
    pub fn runs(self, phase: Phase) -> bool {
        self == Self::Both || self == if phase == Phase::Prefill { Self::Prefill } else { Self::Decode }
    }
}

/// Phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has no outputs.
    Prefill,
    /// It has outputs.
    Decode,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: there is no role of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRole(pub String);

impl fmt::Display for UnknownRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Role::ALL.iter().map(|role| role.name()).collect();
        write!(f, "unknown role `{}`: expected one of {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownRole {}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        let found = Self::ALL.iter().find(|role| role.name() == text);
        found.copied().ok_or_else(|| UnknownRole(text.to_owned()))
    }
}
