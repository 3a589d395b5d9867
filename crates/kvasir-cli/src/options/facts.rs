//! Model and machine facts on which the defaults of engine options depend.

use kvasir::LoadedModel;

/// Inputs of option defaults.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Context length of the model.
    pub(crate) max_model_len: u32,
    /// KV cache slots that fit into the allotted memory.
    pub(crate) slots: u32,
    /// Sliding windows of the model's layers.
    pub(crate) windows: Vec<u32>,
    /// Whether the backend is a CPU.
    pub(crate) is_cpu: bool,
    /// Whether the device is simulated, so that sequences may exceed the model's positions.
    pub(crate) is_simulated: bool,
    /// Whether decode steps can run as captured graphs: on the device of `kvasir sim`.
    pub(crate) has_graphs: bool,
    /// Whether the backend has ring buffers for sliding-window layers.
    pub(crate) has_rings: bool,
    /// Batch sizes that decode steps are padded to, in rising order.
    pub(crate) batch_sizes: Vec<u32>,
}

impl Facts {
    /// Facts of a model on the CPU.
    pub(crate) fn of(model: &LoadedModel, slots: u32) -> Self {
        let program = model.program();
        let max_model_len = u32::try_from(program.max_positions).unwrap_or(u32::MAX);
        Self {
            max_model_len,
            slots,
            windows: program.windows(),
            is_cpu: true,
            is_simulated: model.backend() == "sim",
            has_graphs: false,
            has_rings: model.backend() == "cpu",
            batch_sizes: model.batch_sizes().to_vec(),
        }
    }
}
