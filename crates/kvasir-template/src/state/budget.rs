//! Resource limits of a template run: fuel (steps), memory and recursion depth.
//!
//! Memory accounting:
//!
//! 1. `bytes` is an upper bound: it grows with every allocation and never shrinks by itself.
//! 2. When it reaches the limit, `walk_alive` recounts what variables still hold.
//! 3. Values in the middle of an expression are not reachable from variables. They count in
//!    `unfinished` until the statement that made them ends.
//! 4. Emitted text counts in `written`.
//!
//! Guarded by `tests/templates.rs` and the `template` fuzz target.

use crate::error::{Run, TemplateError};
use crate::state::Interp;
use crate::values::repr::str_of;
use crate::values::value::Value;
use std::sync::atomic::Ordering;

/// Resource limits of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Fuel: number of expressions and statements.
    pub fuel: u64,
    /// Further fuel per input value.
    ///
    /// Templates scan the whole chat for each message (for the last question, or the call that a
    /// result answers), so an honest one takes quadratic steps: about ten million for 2,000 messages.
    pub fuel_per_value: u64,
    /// Maximum fuel of a run, however many values it has.
    pub max_fuel: u64,
    /// Maximum bytes of one value, and of the output.
    pub value_bytes: usize,
    /// Maximum bytes live at once. Released memory only costs fuel: a chat concatenated in one
    /// variable allocates quadratically in its length.
    pub total_bytes: usize,
    /// Maximum nesting of calls and expressions.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let fuel = 20_000_000;
        let (fuel_per_value, max_fuel) = (fuel / 6_000, fuel * 10);
        let (value_bytes, total_bytes) = (16 << 20, 256 << 20);
        Self { fuel, fuel_per_value, max_fuel, value_bytes, total_bytes, depth: 1_000 }
    }
}

/// Accounted bytes of a scope and, below, of a variable.
pub(crate) const SCOPE: usize = 160;
pub(crate) const VARIABLE: usize = 128;
/// Bytes produced or copied that cost one unit of fuel.
const BYTES_PER_STEP: usize = 1024;
/// List elements produced that cost one unit of fuel.
const VALUES_PER_STEP: usize = 4;

impl Interp {
    /// Reserves memory for a value of this size before it is built. Fails beyond the limits.
    pub(crate) fn room(&mut self, bytes: usize) -> Run<()> {
        self.fits(bytes)?;
        self.fuel = self.fuel.saturating_sub((bytes / BYTES_PER_STEP) as u64);
        self.unfinished = self.unfinished.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limits.total_bytes {
            self.count_again()?;
        }
        Ok(())
    }

    /// Recounts live memory. At most half of the limit may be live, so that recounts stay rare
    /// (amortized).
    fn count_again(&mut self) -> Run<()> {
        let alive = self.walk_alive();
        self.fuel = self.fuel.saturating_sub(alive.steps as u64);
        self.bytes = alive.bytes.saturating_add(self.unfinished).saturating_add(self.written);
        if self.bytes > self.limits.total_bytes / 2 {
            let most = self.limits.total_bytes / 2;
            return Err(TemplateError::new(format!("values of more than {most} bytes at once")));
        }
        Ok(())
    }

    /// Runs `part` and then drops its temporary values from the account: only variables and output
    /// remain.
    pub(crate) fn finishing<T>(&mut self, part: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        let before = self.unfinished;
        let out = part(self)?;
        self.unfinished = before;
        Ok(out)
    }

    /// Accounts a value that was read from a variable which may be overwritten while the reader
    /// holds it.
    pub(crate) fn held_while_read(&mut self, value: &Value) {
        self.unfinished = self.unfinished.saturating_add(value.size());
    }

    /// Maximum size of one value, in bytes.
    pub(crate) fn value_bytes(&self) -> usize {
        self.limits.value_bytes
    }

    /// Checks a size against the value limit without reserving memory; for values under
    /// construction.
    pub(crate) fn fits(&self, bytes: usize) -> Run<()> {
        if bytes > self.limits.value_bytes {
            return Err(TemplateError::new(format!(
                "a value of more than {} bytes",
                self.limits.value_bytes
            )));
        }
        Ok(())
    }

    /// Reserves memory for a list of `count` values.
    pub(crate) fn room_for(&mut self, count: usize) -> Run<()> {
        self.fuel = self.fuel.saturating_sub((count / VALUES_PER_STEP) as u64);
        self.room(count.saturating_mul(std::mem::size_of::<Value>() * 2))
    }

    /// Creates a string value and reserves its memory.
    pub(crate) fn text(&mut self, text: impl AsRef<str>) -> Run<Value> {
        self.room(text.as_ref().len())?;
        Ok(Value::str(text))
    }

    /// Consumes one unit of fuel; fails when it is used up, or the run is canceled.
    pub(crate) fn burn(&mut self) -> Run<()> {
        if self.canceled.load(Ordering::Relaxed) {
            return Err(TemplateError::new("the rendering was canceled"));
        }
        self.fuel = self.fuel.checked_sub(1).ok_or_else(|| {
            TemplateError::new(format!("the template takes more than {} steps", self.limits.fuel))
        })?;
        Ok(())
    }

    /// Consumes fuel in proportion to `size` bytes of work.
    pub(crate) fn work(&mut self, size: usize) -> Run<()> {
        self.fuel = self.fuel.saturating_sub(size as u64 / 64);
        self.burn()
    }

    /// Consumes fuel for a traversal of `value`.
    pub(crate) fn walks(&mut self, value: &Value) -> Run<()> {
        self.work(value.size() / 16)
    }

    /// Runs `inner` one recursion level deeper; fails beyond the depth limit.
    pub(crate) fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        self.burn()?;
        self.depth += 1;
        if self.depth > self.limits.depth {
            return Err(TemplateError::new(format!(
                "calls and expressions nest deeper than {}",
                self.limits.depth
            )));
        }
        let out = inner(self);
        self.depth -= 1;
        out
    }

    /// The value's text, with memory reserved.
    pub(crate) fn str_of(&mut self, value: &Value) -> Run<String> {
        let text = str_of(value);
        self.room(text.len())?;
        Ok(text)
    }
}
