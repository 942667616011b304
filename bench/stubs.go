package main

import "context"

func large(context.Context, *bench) error { return nil }
