//! Typed, bounds-checked access to `config.json`. Sizes are limited, so that hostile configs cannot
//! overflow or exhaust memory.
//!
//! A key whose value is null counts as absent. Every error names the key. Guarded by
//! `tests/hostile.rs`.

use crate::error::{ProgramError, Result};
use serde_json::Value as Json;

/// A JSON object of the config, with the path at which errors report its keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config<'a> {
    json: &'a Json,
    path: &'a str,
}

/// Upper bound of a dimension, above any published one. Twice the product of two such sizes fits in
/// 64 bits.
const MAX_SIZE: u64 = 1 << 24;
/// Upper bound of layers and experts, each of which costs memory.
const MAX_COUNT: usize = 1 << 12;

impl<'a> Config<'a> {
    pub(crate) fn new(json: &'a Json) -> Self {
        Self { json, path: "" }
    }

    /// The nested object under `key`; its errors are reported as `key.…`.
    pub(crate) fn object(&self, key: &'a str) -> Result<Option<Self>> {
        match self.get(key) {
            None => Ok(None),
            Some(json) if json.is_object() => Ok(Some(Self { json, path: key })),
            Some(_) => Err(self.bad(key, "is not an object")),
        }
    }

    /// The nested object under `key`; its errors are reported as if its keys were this object's.
    pub(crate) fn entry(&self, key: &str) -> Result<Option<Self>> {
        match self.get(key) {
            None => Ok(None),
            Some(json) if json.is_object() => Ok(Some(Self { json, path: self.path })),
            Some(_) => Err(self.bad(key, "is not an object")),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'a Json> {
        self.json.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn bad(&self, key: &str, why: impl std::fmt::Display) -> ProgramError {
        let dot = if self.path.is_empty() { "" } else { "." };
        ProgramError::config(format!("{}{dot}{key}", self.path), why)
    }

    /// A size of at least 1.
    pub(crate) fn opt_size(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(n @ 1..=MAX_SIZE) => Ok(Some(n as usize)),
            _ => Err(self.bad(key, format!("is {value}, not a count from 1 to {MAX_SIZE}"))),
        }
    }

    pub(crate) fn size(&self, key: &str) -> Result<usize> {
        self.opt_size(key)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    /// The number of layers, experts or groups: at least 1, at most `MAX_COUNT`.
    pub(crate) fn number(&self, key: &str) -> Result<usize> {
        self.at_most(key, MAX_COUNT)
    }

    /// A size of at least 1 and at most `most`.
    pub(crate) fn at_most(&self, key: &str, most: usize) -> Result<usize> {
        match self.size(key)? {
            n if n > most => Err(self.bad(key, format!("is {n}, more than {most}"))),
            n => Ok(n),
        }
    }

    pub(crate) fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.opt_size(key)?.unwrap_or(default))
    }

    /// A size that may be 0; absent is 0.
    pub(crate) fn count(&self, key: &str) -> Result<usize> {
        match self.get(key).map(|v| (v, v.as_u64())) {
            None => Ok(0),
            Some((_, Some(n @ 0..=MAX_SIZE))) => Ok(n as usize),
            Some((v, _)) => Err(self.bad(key, format!("is {v}, not a count up to {MAX_SIZE}"))),
        }
    }

    pub(crate) fn opt_float(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|v| v.is_finite()) {
            Some(v) => Ok(Some(v)),
            None => Err(self.bad(key, format!("is {value}, not a number"))),
        }
    }

    pub(crate) fn float(&self, key: &str) -> Result<f64> {
        self.opt_float(key)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    pub(crate) fn float_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.opt_float(key)?.unwrap_or(default))
    }

    /// A number above 0 that is finite and positive as f32 too; null and absent are `None`.
    pub(crate) fn opt_positive(&self, key: &str) -> Result<Option<f64>> {
        match self.opt_float(key)? {
            Some(v) if v as f32 <= 0.0 || (v as f32).is_infinite() => {
                Err(self.bad(key, format!("is {v}, not a positive number; null is none")))
            }
            value => Ok(value),
        }
    }

    /// A number of at least 0 that is finite as f32 too.
    pub(crate) fn amount_or(&self, key: &str, default: f64) -> Result<f64> {
        match self.float_or(key, default)? {
            v if v >= 0.0 && (v as f32).is_finite() => Ok(v),
            v => Err(self.bad(key, format!("is {v}, not a number of at least 0"))),
        }
    }

    pub(crate) fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.bad(key, format!("is {value}, not a flag"))),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => {
                value.as_str().map(Some).ok_or_else(|| self.bad(key, format!("is {value}, not a string")))
            }
        }
    }

    /// Fails if a flag, true by default, is false.
    pub(crate) fn require_true(&self, key: &str) -> Result<()> {
        if self.flag_or(key, true)? { Ok(()) } else { Err(self.bad(key, "is false, only true is supported")) }
    }

    /// Fails if a string is present and differs from `only`.
    pub(crate) fn require_text(&self, key: &str, only: &str) -> Result<()> {
        match self.text(key)?.filter(|value| *value != only) {
            None => Ok(()),
            Some(other) => Err(self.bad(key, format!("is {other:?}, only {only:?} is supported"))),
        }
    }

    /// A list of strings.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().and_then(|l| l.iter().map(Json::as_str).collect());
        list.map(Some).ok_or_else(|| self.bad(key, "is not a list of strings"))
    }

    /// The value of each layer's kind, from a list of `layers` kinds such as `layer_types`. `None`
    /// if the key is absent.
    pub(crate) fn by_layer_kind<T: Copy, const N: usize>(
        &self,
        key: &str,
        layers: usize,
        kinds: [(&str, T); N],
    ) -> Result<Option<Vec<T>>> {
        let Some(names) = self.texts(key)? else { return Ok(None) };
        if names.len() != layers {
            return Err(self.bad(key, format!("has {} entries for {layers} layers", names.len())));
        }
        let value = |name: &str| {
            let known = kinds.iter().find(|(kind, _)| *kind == name);
            let unknown = || self.bad(key, format!("has {name:?}, which is not supported"));
            known.map(|(_, value)| *value).ok_or_else(unknown)
        };
        names.into_iter().map(value).collect::<Result<Vec<_>>>().map(Some)
    }

    /// A list of counts that may be 0.
    pub(crate) fn counts(&self, key: &str) -> Result<Vec<usize>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().and_then(|l| l.iter().map(|v| v.as_u64().map(|n| n as usize)).collect());
        list.ok_or_else(|| self.bad(key, "is not a list of counts"))
    }

    /// A list of integers.
    pub(crate) fn integers(&self, key: &str) -> Result<Vec<i64>> {
        let value = self.get(key).ok_or_else(|| self.bad(key, "is missing"))?;
        let list = value.as_array().and_then(|l| l.iter().map(Json::as_i64).collect());
        list.ok_or_else(|| self.bad(key, "is not a list of integers"))
    }

    /// A list of positive numbers.
    pub(crate) fn floats(&self, key: &str) -> Result<Vec<f64>> {
        let value = self.get(key).ok_or_else(|| self.bad(key, "is missing"))?;
        let list: Option<Vec<f64>> = value.as_array().and_then(|l| l.iter().map(Json::as_f64).collect());
        list.filter(|l| l.iter().all(|v| v.is_finite() && *v > 0.0))
            .ok_or_else(|| self.bad(key, "is not a list of positive numbers"))
    }
}
