package main

import "github.com/spf13/cobra"

func tourCommand(g *globals) *cobra.Command { return &cobra.Command{Use: "tour"} }
