//! The fork-join thread pool (`pool`) and the job that runs on its caller before others may read its
//! result (`prologue`).

pub(crate) mod pool;
pub(crate) mod prologue;
