//! Each driver by itself: jobs in, events out.
