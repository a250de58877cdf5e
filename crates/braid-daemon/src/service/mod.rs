//! The daemon as the API's server sees it: each method of the service is one call of the control plane. No decision is made
//! here.

mod arrays;
mod daemon;
mod exports;
mod jobs;
mod metrics;
mod nodes;
mod pools;
mod replicas;
mod replicated;
mod snapshots;
mod volumes;
