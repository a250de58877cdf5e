//! What the fuzz targets share.

#![forbid(unsafe_code)]

pub mod entries;
