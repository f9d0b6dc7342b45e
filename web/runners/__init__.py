"""The runners' long polls: admission, offers and the handover of JIT configs."""
